//! The controller's loop. One step lists the chain table, plans, and carries out so much of the
//! plan at most; whatever is left, or went wrong, the next step finds again. So changes that come
//! together are written together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::storage_chain::StorageChainStatus;
use crds::storage_pool::StoragePoolStatus;
use crds::{StorageChain, StorageChainSpec, StoragePool, names};
use daemon::{CancellationToken, chain};
use futures::{StreamExt, stream};
use kube::Resource;
use kube::api::Patch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::{ChainSpec, CreateChainsRequest, ListRequest};
use tokio::sync::watch;
use tonic::transport::Channel;
use tracing::{info, warn};

use super::mirrors::SharedStorage;
use super::plan::{NewChain, Observed, StoragePlan, object_name, plan};
use super::table::{ChainTable, LastReports};
use crate::cluster::{SharedCluster, key_of, now, version_of};
use crate::condition::condition;
use crate::leader::Role;
use crate::mirror::MirrorOwner as _;
use crate::training_job::write::{self, STORAGE_IN_FLIGHT, Writer};

/// How often the table is listed.
const PERIOD: Duration = Duration::from_secs(5);
/// Between two steps, however much happens.
const PAUSE: Duration = Duration::from_secs(1);
/// Writes of a step to the API server: the rest follows. A node that is lost changes thousands of
/// chains at once.
const WRITES: usize = 256;
/// Bytes of a table: 16,384 chains of three are about 3 MB.
const TABLE_BYTES: usize = 16 << 20;
/// So long a manager may be away before pools say so.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps pools and chains while this replica leads.
#[derive(Debug)]
pub struct StorageController {
    storage: Arc<SharedStorage>,
    /// For the nodes.
    cluster: Arc<SharedCluster>,
    writer: Writer,
    manager: ChainManagerClient<Channel>,
    reports: LastReports,
    /// Why the manager did not take the chains of a pool.
    refused: BTreeMap<String, String>,
    /// When the table was listed last.
    listed: std::time::Instant,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("failed to list the chain table: {}", .0.message())]
    Call(#[from] tonic::Status),
    #[error(transparent)]
    Table(#[from] super::table::DamagedTable),
}

impl StorageController {
    /// The writer is that for storage, and writes only while this replica leads.
    pub fn new(
        storage: Arc<SharedStorage>,
        cluster: Arc<SharedCluster>,
        writer: Writer,
        manager: Channel,
    ) -> Self {
        Self {
            storage,
            cluster,
            writer,
            manager: ChainManagerClient::new(manager).max_decoding_message_size(TABLE_BYTES),
            reports: LastReports::default(),
            refused: BTreeMap::new(),
            listed: now(),
        }
    }

    /// Works for ever, while this replica leads.
    pub async fn run(mut self, mut role: watch::Receiver<Role>, shutdown: CancellationToken) {
        loop {
            let due = async {
                tokio::time::sleep(PAUSE).await;
                tokio::select! {
                    () = self.storage.changed() => {}
                    () = tokio::time::sleep(PERIOD - PAUSE) => {}
                }
                role.wait_for(|role| *role == Role::Leading).await.is_ok()
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                leads = due => if !leads { return },
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.step() => {}
            }
        }
    }

    /// Does what is to be done now.
    pub async fn step(&mut self) {
        if !self.storage.mirrors().is_synced() {
            return;
        }
        match self.list().await {
            Ok(table) => {
                let observed = self.observe(table);
                // A pool of thousands of targets takes seconds.
                match tokio::task::spawn_blocking(move || plan(&observed)).await {
                    Ok(plan) => self.carry_out(plan).await,
                    Err(error) => warn!(%error, "failed to plan the chains, trying again"),
                }
            }
            Err(error) => {
                warn!(error = %chain(&error), "failed to look at the chain table, trying again");
                if now().saturating_duration_since(self.listed) >= PATIENCE {
                    self.show_unreachable(&error).await;
                }
            }
        }
    }

    async fn list(&mut self) -> Result<ChainTable, ListError> {
        let list = self.manager.list(ListRequest {}).await?.into_inner();
        let table = ChainTable::new(list, &mut self.reports, now())?;
        self.listed = now();
        Ok(table)
    }

    /// A copy, so that nobody waits for the planning.
    fn observe(&self, table: ChainTable) -> Observed {
        let nodes = self.cluster.mirrors();
        let nodes = nodes
            .nodes
            .values()
            .map(|node| (node.name.as_str().to_owned(), node.clone()));
        let nodes = nodes.collect();
        let mirrors = self.storage.mirrors();
        Observed {
            pools: mirrors.pools.values().cloned().collect(),
            chains: mirrors.chains.values().cloned().collect(),
            nodes,
            table,
            refused: self.refused.clone(),
        }
    }

    async fn carry_out(&mut self, plan: StoragePlan) {
        self.refused
            .retain(|pool, _| plan.create.contains_key(pool));
        for (pool, chains) in &plan.create {
            self.create(pool, chains).await;
        }
        let created = stream::iter(plan.objects.iter().take(WRITES));
        created
            .for_each_concurrent(STORAGE_IN_FLIGHT, |spec| self.create_object(spec))
            .await;
        let (pools, chains) = {
            let mirrors = self.storage.mirrors();
            let pools = plan.pools.into_iter().filter_map(|(name, wanted)| {
                let shown = mirrors.pools.get("", &name)?.status.clone();
                let shown = shown.unwrap_or_default();
                (shown != wanted).then_some((name, shown, wanted))
            });
            let chains = plan.chains.into_iter().filter_map(|(name, wanted)| {
                let shown = mirrors.chains.get("", &name)?.status.clone();
                let is_news = shown.as_ref() != Some(&wanted);
                is_news.then_some((name, shown.unwrap_or_default(), wanted))
            });
            let pools: Vec<_> = pools.collect();
            (pools, chains.take(WRITES).collect::<Vec<_>>())
        };
        stream::iter(pools)
            .for_each_concurrent(STORAGE_IN_FLIGHT, |(name, shown, wanted)| {
                self.show_pool(name, shown, wanted)
            })
            .await;
        stream::iter(chains)
            .for_each_concurrent(STORAGE_IN_FLIGHT, |(name, shown, wanted)| {
                self.show_chain(name, shown, wanted)
            })
            .await;
    }

    /// Hands chains to the manager. Whatever comes of it, the next table shows it.
    async fn create(&mut self, pool: &str, chains: &[NewChain]) {
        let spec = |new: &NewChain| {
            let targets = new
                .targets
                .iter()
                .map(|target| target.to_be_bytes().to_vec());
            ChainSpec {
                chain: new.chain,
                targets: targets.collect(),
            }
        };
        let request = CreateChainsRequest {
            pool: pool.to_owned(),
            chains: chains.iter().map(spec).collect(),
        };
        match self.manager.create_chains(request).await {
            Ok(_) => {
                info!(pool, chains = chains.len(), "created chains");
                self.refused.remove(pool);
            }
            Err(status) => {
                let error = status.message();
                warn!(pool, error, "failed to create chains, trying again");
                self.refused.insert(pool.to_owned(), error.to_owned());
            }
        }
        // They are in the next table.
        self.storage.notify();
    }

    async fn create_object(&self, spec: &StorageChainSpec) {
        let name = object_name(spec);
        let object = json!({
            "apiVersion": names::API_VERSION,
            "kind": StorageChain::kind(&()),
            "metadata": {"name": name},
            "spec": spec,
        });
        match self.writer.create::<StorageChain>("", &object).await {
            Ok(created) => {
                let (key, version) = (key_of(&created), version_of(&created));
                let mut mirrors = self.storage.mirrors();
                mirrors.chains.created(key, version, created, now());
                drop(mirrors);
                // What it is to show comes with the next step.
                self.storage.notify();
            }
            // An earlier leader has created it; the watch will show it.
            Err(write::Error::Exists { .. }) => {}
            Err(error) => {
                warn!(chain = name, %error, "failed to create the object of a chain, trying again");
            }
        }
    }

    async fn show_pool(&self, name: String, shown: StoragePoolStatus, wanted: StoragePoolStatus) {
        if let Some(pool) = self.show::<StoragePool, _>(&name, &shown, &wanted).await {
            let (key, version) = (key_of(&pool), version_of(&pool));
            self.storage.mirrors().pools.changed(key, version, pool);
        }
    }

    async fn show_chain(
        &self,
        name: String,
        shown: StorageChainStatus,
        wanted: StorageChainStatus,
    ) {
        if let Some(chain) = self.show::<StorageChain, _>(&name, &shown, &wanted).await {
            let (key, version) = (key_of(&chain), version_of(&chain));
            self.storage.mirrors().chains.changed(key, version, chain);
        }
    }

    async fn show<K, S>(&self, name: &str, shown: &S, wanted: &S) -> Option<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
        S: Serialize,
    {
        let patch = Patch::Merge(json!({"status": replacing(shown, wanted)}));
        let written = self
            .writer
            .patch::<K>("", name, Some("status"), &patch)
            .await;
        let kind = K::kind(&());
        written
            .inspect_err(
                |error| warn!(%kind, name, %error, "failed to write a status, trying again"),
            )
            .ok()
    }

    /// Pools say that nothing is known of their chains. What chains show stays: the data is no
    /// worse for it.
    async fn show_unreachable(&self, error: &ListError) {
        let pools: Vec<_> = {
            let mirrors = self.storage.mirrors();
            let pools = mirrors.pools.values().filter_map(|pool| {
                let shown = pool.status.clone().unwrap_or_default();
                let reason = "ManagerUnreachable";
                let message =
                    format!("{error}. Data is served meanwhile; see that the chain manager runs");
                let ready = condition(&shown.conditions, "Ready", false, reason, message.clone());
                let wanted = StoragePoolStatus {
                    reason: Some(reason.to_owned()),
                    message: Some(message),
                    conditions: vec![ready],
                    ..shown.clone()
                };
                let is_known = shown.reason.as_deref() == Some(reason);
                (!is_known).then_some((pool.metadata.name.clone()?, shown, wanted))
            });
            pools.collect()
        };
        for (name, shown, wanted) in pools {
            self.show_pool(name, shown, wanted).await;
        }
    }
}

/// A merge patch that leaves nothing of what is shown.
fn replacing(shown: &impl Serialize, wanted: &impl Serialize) -> Value {
    let shown = serde_json::to_value(shown).unwrap_or_default();
    let mut wanted = serde_json::to_value(wanted).unwrap_or_default();
    if let (Some(shown), Some(wanted)) = (shown.as_object(), wanted.as_object_mut()) {
        for field in shown.keys() {
            wanted.entry(field).or_insert(Value::Null);
        }
    }
    wanted
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
