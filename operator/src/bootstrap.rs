//! What must exist before the operator can work, and is made by it when it is missing: the master
//! key of all attempts' keys, and the Fabric.

use std::path::{Path, PathBuf};

use crds::fabric::{Fabric, FabricSpec};
use crds::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use link::handshake::KEY_BYTES;
use serde_json::json;
use tracing::info;

use crate::proof::Masters;
use crate::training_job::write::{self, Writer};

/// Name of the Secret with the master key.
const MASTER: &str = "fireflyer-master";
const MASTER_BYTES: usize = KEY_BYTES;
/// Entry with the key in use.
const CURRENT: &str = "key";
/// Entry with the key before it.
const PREVIOUS: &str = "previous";

/// The paper's node: 8 GPUs, 2 x 32 cores, 512 GB, one 200 Gbit/s adapter (table 1). The rest of
/// its cores and memory is the system's.
const PAPER: &str = "
classes:
  - name: a100
    gpus: 8
    rdma: 1
    trainer: {cpu: '48', memory: 400Gi}
    sidecar: {cpu: '8', memory: 64Gi}
";

/// Why the operator cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not do its part.
    #[error(transparent)]
    Write(#[from] write::Error),
    /// The kernel gave no random bytes.
    #[error("failed to draw the master key: {0}")]
    Random(String),
    /// The Secret is there, but not its key.
    #[error(
        "failed to read the master key: entry `{0}` of Secret {MASTER} has not {MASTER_BYTES} bytes; write the right key, or delete the Secret and restart: jobs that run now train on, and are proved from their next attempt on"
    )]
    Master(&'static str),
    /// The file with the default Fabric.
    #[error("failed to read the default Fabric from {path}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// What is in it.
    #[error("failed to parse the default Fabric")]
    Parse(#[source] serde_yaml::Error),
}

/// The master keys; the first is made by whichever replica comes first.
pub async fn masters(writer: &Writer, namespace: &str) -> Result<Masters, Error> {
    let secret: Secret = match writer.get(namespace, MASTER).await {
        Ok(secret) => secret,
        Err(write::Error::Missing { .. }) => {
            let mut key = vec![0; MASTER_BYTES];
            getrandom::fill(&mut key).map_err(|error| Error::Random(error.to_string()))?;
            let body = json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": MASTER, "namespace": namespace},
                "immutable": true,
                "data": {CURRENT: ByteString(key)},
            });
            match writer.create(namespace, &body).await {
                Ok(secret) => {
                    info!(secret = MASTER, "made the master key");
                    secret
                }
                // Another replica was faster.
                Err(write::Error::Exists { .. }) => writer.get(namespace, MASTER).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    keys_in(secret)
}

/// The keys of the Secret: `key`, and while keys are rotated `previous`.
fn keys_in(secret: Secret) -> Result<Masters, Error> {
    let mut entries = secret.data.unwrap_or_default();
    let mut take = |entry| {
        let bytes = entries.remove(entry)?;
        Some(bytes.0.try_into().map_err(|_| Error::Master(entry)))
    };
    let current = take(CURRENT).unwrap_or(Err(Error::Master(CURRENT)))?;
    let previous = take(PREVIOUS).transpose()?;
    Ok(Masters::new(current, previous))
}

/// The Fabric to create when there is none.
pub fn default_fabric(file: Option<&Path>) -> Result<FabricSpec, Error> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?,
        None => PAPER.to_owned(),
    };
    serde_yaml::from_str(&text).map_err(Error::Parse)
}

/// Creates the Fabric.
pub async fn create_fabric(writer: &Writer, spec: &FabricSpec) -> Result<Option<Fabric>, Error> {
    let body = json!({
        "apiVersion": format!("{}/v1alpha1", names::GROUP),
        "kind": "Fabric",
        "metadata": {"name": names::FABRIC},
        "spec": spec,
    });
    match writer.create("", &body).await {
        Ok(fabric) => {
            info!(fabric = names::FABRIC, "created the default Fabric");
            Ok(Some(fabric))
        }
        Err(write::Error::Exists { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_fabric_has_the_papers_node() {
        let fabric = default_fabric(None).unwrap();
        assert_eq!(
            (fabric.classes[0].name.as_str(), fabric.classes[0].gpus),
            ("a100", 8)
        );
        assert_eq!(
            (fabric.zone_label.as_str(), fabric.max_cross_zone_jobs),
            (names::LABEL_ZONE, 1)
        );
    }

    #[test]
    fn the_key_before_is_read_beside_the_one_in_use_and_each_has_its_length() {
        let read = |data: serde_json::Value| {
            let secret = json!({"metadata": {}, "data": data});
            keys_in(serde_json::from_value(secret).unwrap())
        };
        let key = |bytes: usize| ByteString(vec![7; bytes]);
        let one = read(json!({"key": key(32)})).unwrap();
        assert_eq!(one.signers().count(), 1);
        let two = read(json!({"key": key(32), "previous": key(32)})).unwrap();
        assert_eq!(two.signers().count(), 2);
        for (data, entry) in [
            (json!({}), "`key`"),
            (json!({"key": key(31)}), "`key`"),
            (json!({"key": key(32), "previous": key(1)}), "`previous`"),
        ] {
            let said = read(data).unwrap_err().to_string();
            assert!(said.contains(entry), "{said}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = default_fabric(Some(Path::new("/nowhere/fabric.yaml"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/fabric.yaml"));
    }
}
