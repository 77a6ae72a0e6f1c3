//! What our service accounts wrote, read from the API server's audit log.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One request that changed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedWrite {
    /// Service account without its prefix, for example `fireflyer-operator`.
    pub account: String,
    /// `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// Resource, with its subresource after a slash.
    pub resource: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object; empty for some creates.
    pub name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    verb: String,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    object_ref: Option<ObjectRef>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

/// Length of the log now, to be passed to [`writes_since`] later.
pub fn mark(log: &Path) -> Result<u64> {
    Ok(std::fs::metadata(log)
        .context("the API server keeps no audit log")?
        .len())
}

/// Writes by the service accounts of our namespace since `mark`, without Leases and dry runs.
pub fn writes_since(log: &Path, mark: u64) -> Result<Vec<AuditedWrite>> {
    let bytes = std::fs::read(log).context("failed to read the audit log")?;
    let start = usize::try_from(mark)?.min(bytes.len());
    let prefix = format!("system:serviceaccount:{}:", crds::names::SYSTEM_NAMESPACE);
    let mut writes = Vec::new();
    for line in bytes[start..].split(|byte| *byte == b'\n') {
        // The last line may still be being written.
        let Ok(line) = serde_json::from_slice::<Line>(line) else {
            continue;
        };
        let Some(account) = line.user.username.strip_prefix(&prefix) else {
            continue;
        };
        let changes = matches!(
            line.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        );
        let object = line.object_ref.unwrap_or_default();
        let reviews = object.resource.ends_with("reviews");
        let stores = !reviews && object.resource != "leases" && !is_dry_run(&line.request_uri);
        if line.stage != "ResponseComplete" || !changes || !stores {
            continue;
        }
        let resource = match object.subresource.as_str() {
            "" => object.resource,
            subresource => format!("{}/{subresource}", object.resource),
        };
        writes.push(AuditedWrite {
            account: account.to_owned(),
            verb: line.verb,
            resource,
            namespace: object.namespace,
            name: object.name,
        });
    }
    Ok(writes)
}

/// Those of the writes that are on pods of one namespace.
pub fn on_pods<'a>(
    writes: &'a [AuditedWrite],
    namespace: &str,
) -> impl Iterator<Item = &'a AuditedWrite> {
    writes
        .iter()
        .filter(move |write| write.resource.starts_with("pods") && write.namespace == namespace)
}

fn is_dry_run(uri: &str) -> bool {
    uri.split_once('?')
        .is_some_and(|(_, query)| crate::crash::is_dry_run(query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_our_writes_and_neither_reads_leases_dry_runs_nor_others() {
        let line = |stage: &str, verb: &str, user: &str, resource: &str| {
            format!(
                "{{\"stage\":\"{stage}\",\"verb\":\"{verb}\",\"user\":{{\"username\":\"{user}\"}},\
                 \"objectRef\":{{\"resource\":\"{resource}\",\"namespace\":\"n\",\"name\":\"x\"}}}}\n"
            )
        };
        let ours = "system:serviceaccount:fireflyer-system:fireflyer-operator";
        let text = [
            line("ResponseComplete", "create", ours, "pods"),
            line("RequestReceived", "create", ours, "pods"),
            line("ResponseComplete", "get", ours, "pods"),
            line("ResponseComplete", "update", ours, "leases"),
            line("ResponseComplete", "delete", "system:node:n1", "pods"),
            line("ResponseComplete", "create", ours, "pods").replace(
                "\"user\"",
                "\"requestURI\":\"/api/v1/namespaces/n/pods?&dryRun=All&x=y\",\"user\"",
            ),
            "{\"stage\":\"Resp".to_owned(),
        ]
        .concat();
        let file = std::env::temp_dir().join(format!("audit-{}.log", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let writes = writes_since(&file, 0).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            (writes[0].verb.as_str(), writes[0].resource.as_str()),
            ("create", "pods")
        );
    }
}
