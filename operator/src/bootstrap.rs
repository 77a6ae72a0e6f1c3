//! What must exist before the operator can work, and is made by it when it is missing: the master
//! key of all attempts' keys, and the Fabric.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crds::fabric::{Fabric, FabricSpec};
use crds::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use tracing::info;

use crate::training_job::write::{self, Writer};

/// Name of the Secret with the master key.
const MASTER: &str = "fireflyer-master";
const MASTER_BYTES: usize = 32;

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
        "failed to read the master key: Secret {MASTER} has no entry `key` of {MASTER_BYTES} bytes; delete the Secret and restart, attempts that run now will then start again"
    )]
    Master,
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

/// The master key; made by whichever replica comes first.
pub async fn master(writer: &Writer, namespace: &str) -> Result<Arc<[u8]>, Error> {
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
                "data": {"key": ByteString(key)},
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
    let key = secret
        .data
        .unwrap_or_default()
        .remove("key")
        .ok_or(Error::Master)?;
    if key.0.len() != MASTER_BYTES {
        return Err(Error::Master);
    }
    Ok(key.0.into())
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
    fn a_file_that_is_not_there_is_named() {
        let error = default_fabric(Some(Path::new("/nowhere/fabric.yaml"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/fabric.yaml"));
    }
}
