//! Volumes at the metadata service: what the driver's controller makes, deletes and looks up.

use anyhow::bail;
use chain_link::PeerRole;
use csi::{
    StoreUnavailable, VolumeCapacity, VolumeError, VolumeRecord, VolumeRoot, VolumeStore,
    WantedVolume,
};
use metadata::{Errno, FileLayout, VolumeSettings, VolumeView};
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::{ListRequest, ListResponse};
use storage_rpc::{MetaClient, MetaError};
use tonic::transport::Channel;

use crate::args::{FileSystem, ReachArgs, VolumeArgs};
use crate::client::{manager_of, names_of};

/// Of a chain's targets, in hundredths, what volumes may be promised: the rest is for contents on their way.
const USABLE_SHARE: u64 = 95;

/// Makes volumes.
pub(crate) struct Volumes {
    names: MetaClient,
    manager: ChainManagerClient<Channel>,
    args: VolumeArgs,
}

impl Volumes {
    pub(crate) fn new(
        file_system: &FileSystem,
        reach: &ReachArgs,
        args: VolumeArgs,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            names: names_of(file_system, reach, 0)?,
            manager: manager_of(file_system, &reach.manager, PeerRole::Client)?,
            args,
        })
    }

    /// A volume that exists.
    pub(crate) async fn view(&self, name: &str) -> Result<Option<VolumeView>, StoreUnavailable> {
        match self.names.get_volume(name.to_owned()).await {
            Ok(view) => Ok(Some(view)),
            Err(MetaError::Refused(Errno::NotFound)) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn list(&self) -> Result<ListResponse, StoreUnavailable> {
        let mut manager = self.manager.clone();
        let listed = manager.list(ListRequest {}).await;
        let listed = listed.map_err(|status| {
            StoreUnavailable(format!("the chain manager does not answer: {status}"))
        })?;
        Ok(listed.into_inner())
    }

    /// The newest list of the pool's chains.
    fn list_number(&self, listed: &ListResponse) -> Result<u32, StoreUnavailable> {
        let pool = &self.args.pool;
        let lists = listed.lists.iter().filter(|list| list.pool == *pool);
        let newest = lists.map(|list| list.list).max();
        newest.ok_or_else(|| {
            StoreUnavailable(format!(
                "the StoragePool {pool} has no chains yet: look at `kubectl get storagepool {pool}`"
            ))
        })
    }

    /// What the pool's targets can keep. A byte is on every member of its chain.
    fn total_bytes(&self, listed: &ListResponse) -> u64 {
        let targets = listed
            .targets
            .iter()
            .filter(|target| target.pool == self.args.pool);
        let raw = targets
            .filter_map(|target| target.report.as_ref())
            .map(|report| report.capacity_bytes);
        let raw: u64 = raw.sum();
        let pool_chains = listed.chains.iter().filter(|chain| {
            let of_pool = |target: &Vec<u8>| {
                let mut targets = listed.targets.iter();
                targets.any(|of| of.target == *target && of.pool == self.args.pool)
            };
            chain
                .members
                .first()
                .is_some_and(|member| of_pool(&member.target))
        });
        let replicas = pool_chains
            .map(|chain| chain.members.len())
            .max()
            .unwrap_or(1)
            .max(1);
        let usable = raw / replicas as u64 / 100 * USABLE_SHARE;
        // Of a factor up to 1,000.
        (usable as f64 * self.args.overcommit) as u64
    }
}

fn unavailable(error: MetaError) -> StoreUnavailable {
    StoreUnavailable(error.to_string())
}

fn record(id: &str, settings: &VolumeSettings) -> VolumeRecord {
    VolumeRecord {
        id: id.to_owned(),
        bytes: settings.bytes,
        root: VolumeRoot {
            mode: settings.mode,
            uid: settings.uid,
            gid: settings.gid,
        },
    }
}

impl VolumeStore for Volumes {
    async fn create(&self, name: &str, wanted: WantedVolume) -> Result<VolumeRecord, VolumeError> {
        let listed = self.list().await?;
        let table = self.list_number(&listed)?;
        let WantedVolume { bytes, root } = wanted;
        let settings = VolumeSettings {
            bytes,
            mode: root.mode,
            uid: root.uid,
            gid: root.gid,
        };
        let layout = FileLayout {
            table,
            chunk_bytes: self.args.chunk_bytes,
            stripe: self.args.stripe,
            seed: 0,
        };
        let most_promised = self.total_bytes(&listed);
        let made = self
            .names
            .make_volume(name.to_owned(), settings, layout, most_promised);
        match made.await {
            Ok(view) => Ok(record(name, &view.settings)),
            Err(MetaError::Refused(Errno::Exists)) => match self.view(name).await? {
                Some(view) => Err(VolumeError::Exists(record(name, &view.settings))),
                None => {
                    Err(StoreUnavailable(format!("the volume {name} was deleted just now")).into())
                }
            },
            Err(MetaError::Refused(Errno::NoSpace)) => {
                Err(VolumeError::NoRoom(self.capacity().await?))
            }
            Err(error) => Err(unavailable(error).into()),
        }
    }

    async fn delete(&self, id: &str) -> Result<(), StoreUnavailable> {
        match self.names.delete_volume(id.to_owned()).await {
            // What can be no name is none of a volume.
            Ok(()) | Err(MetaError::Refused(Errno::Invalid | Errno::NotFound)) => Ok(()),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn get(&self, id: &str) -> Result<Option<VolumeRecord>, StoreUnavailable> {
        let view = self.view(id).await?;
        Ok(view.map(|view| record(id, &view.settings)))
    }

    async fn capacity(&self) -> Result<VolumeCapacity, StoreUnavailable> {
        let listed = self.list().await?;
        Ok(VolumeCapacity {
            total_bytes: self.total_bytes(&listed),
            promised_bytes: self.names.get_promised().await.map_err(unavailable)?,
        })
    }

    async fn is_ready(&self) -> bool {
        match self.list().await {
            Ok(listed) => self.list_number(&listed).is_ok(),
            Err(_) => false,
        }
    }
}

/// Makes a volume for a mount without Kubernetes, if it is not there.
pub(crate) async fn make(volumes: &Volumes, name: &str, bytes: u64) -> anyhow::Result<()> {
    let root = VolumeRoot {
        mode: 0o777,
        uid: 0,
        gid: 0,
    };
    let wanted = WantedVolume { bytes, root };
    match volumes.create(name, wanted).await {
        Ok(_) => Ok(()),
        Err(VolumeError::Exists(found)) => {
            let there = found.bytes;
            bail!("failed to make the volume {name}: it exists with {there} bytes")
        }
        Err(VolumeError::NoRoom(capacity)) => {
            let left = capacity.left_bytes();
            bail!("failed to make the volume {name}: {left} bytes are left to be promised")
        }
        Err(VolumeError::Unavailable(StoreUnavailable(why))) => {
            bail!("failed to make the volume {name}: {why}")
        }
    }
}
