//! The service Node: mounts volumes on this node. Each volume's calls are one after the other, and
//! each goes on to its end even if its caller does not wait for it.

mod folders;
mod locks;
mod paths;
mod volume_mounts;

use std::future::Future;
use std::sync::Arc;

use tonic::{Request, Response, Status};

pub(crate) use paths::{KubeletPaths, PathError};

use crate::capability::{self, CapabilityError};
use crate::controller::signed;
use crate::error::{CsiError, answer, needed};
use crate::pb::csi::node_server::Node;
use crate::pb::csi::node_service_capability::rpc::Type as Rpc;
use crate::pb::csi::node_service_capability::{self, Type};
use crate::pb::csi::volume_capability::access_mode::Mode;
use crate::pb::csi::volume_usage::Unit;
use crate::pb::csi::{
    Empty, NodeGetCapabilitiesResponse, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeServiceCapability,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    VolumeUsage,
};
use crate::{MountUsage, Mounter};
use locks::VolumeLocks;
use volume_mounts::{Publication, VolumeMounts};

/// What this service does.
const OFFERED: [Rpc; 3] = [
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::SingleNodeMultiWriter,
];

const EXPANSION: CsiError = CsiError::NotOffered {
    what: "larger sizes of a volume that exists",
    instead: "make a larger volume and copy the files",
};

#[derive(Debug)]
pub(crate) struct NodeService<M> {
    name: String,
    paths: KubeletPaths,
    mounter: Arc<M>,
    mounts: VolumeMounts<M>,
    locks: VolumeLocks,
}

impl<M: Mounter> NodeService<M> {
    pub(crate) fn new(name: String, paths: KubeletPaths, mounter: Arc<M>) -> Self {
        Self {
            name,
            paths,
            mounts: VolumeMounts::new(Arc::clone(&mounter)),
            mounter,
            locks: VolumeLocks::default(),
        }
    }

    async fn stage(&self, request: NodeStageVolumeRequest) -> Result<Empty, CsiError> {
        let id = needed("volume_id", &request.volume_id)?.to_owned();
        let staging = needed("staging_target_path", &request.staging_target_path)?;
        let mode = mode(request.volume_capability.as_ref())?;
        let staging = self.paths.check(staging)?;
        let mounts = self.mounts.clone();
        let is_read_only = capability::is_read_only(mode);
        self.alone(&request.volume_id, async move {
            mounts.stage(&id, &staging, is_read_only).await
        })
        .await
    }

    async fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<Empty, CsiError> {
        let id = needed("volume_id", &request.volume_id)?.to_owned();
        let staging = needed("staging_target_path", &request.staging_target_path)?;
        let staging = self.paths.check(staging)?;
        let mounts = self.mounts.clone();
        self.alone(&request.volume_id, async move {
            mounts.unstage(&id, &staging).await
        })
        .await
    }

    async fn publish(&self, request: NodePublishVolumeRequest) -> Result<Empty, CsiError> {
        let id = needed("volume_id", &request.volume_id)?.to_owned();
        let target = needed("target_path", &request.target_path)?;
        let mode = mode(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(CsiError::NotStaged);
        }
        let is_staged_read_only = capability::is_read_only(mode);
        let publication = Publication {
            id,
            staging: self.paths.check(&request.staging_target_path)?,
            target: self.paths.check(target)?,
            is_staged_read_only,
            is_read_only: is_staged_read_only || request.readonly,
            is_alone: mode == Mode::SingleNodeSingleWriter,
        };
        let mounts = self.mounts.clone();
        self.alone(&request.volume_id, async move {
            mounts.publish(publication).await
        })
        .await
    }

    async fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<Empty, CsiError> {
        let id = needed("volume_id", &request.volume_id)?.to_owned();
        let target = needed("target_path", &request.target_path)?;
        let target = self.paths.check(target)?;
        let mounts = self.mounts.clone();
        self.alone(&request.volume_id, async move {
            mounts.unpublish(&id, &target).await
        })
        .await
    }

    /// Runs the work of a call when no other call works on the volume. It holds the lock until it
    /// has ended, whatever happens to the caller.
    async fn alone(
        &self,
        id: &str,
        work: impl Future<Output = Result<(), CsiError>> + Send + 'static,
    ) -> Result<Empty, CsiError> {
        let lock = self.locks.lock(id).await?;
        let work = tokio::spawn(async move {
            let result = work.await;
            drop(lock);
            result
        });
        work.await?.map(|()| Empty {})
    }

    /// From memory and the table of mounts: neither waits for a mount.
    fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, CsiError> {
        let id = needed("volume_id", &request.volume_id)?;
        let path = needed("volume_path", &request.volume_path)?;
        // A path that no mount could be at is one where the volume is not.
        let folder = self.paths.check(path).ok();
        let table = fuse::mount::table()?;
        let is_there = table.iter().any(|entry| {
            entry.is_ours() && entry.source == id && folder.as_ref() == Some(&entry.folder)
        });
        let usage = self.mounter.usage(id).filter(|_| is_there);
        let usage = usage.ok_or_else(|| CsiError::NotMounted {
            id: id.to_owned(),
            path: path.to_owned(),
        })?;
        let MountUsage {
            bytes,
            used_bytes,
            inodes,
            used_inodes,
        } = usage;
        Ok(NodeGetVolumeStatsResponse {
            usage: vec![
                used(Unit::Bytes, Some(bytes), used_bytes),
                used(Unit::Inodes, inodes, used_inodes),
            ],
        })
    }
}

fn used(unit: Unit, total: Option<u64>, used: u64) -> VolumeUsage {
    let available = total.map(|total| total.saturating_sub(used));
    VolumeUsage {
        available: available.map_or(0, signed),
        total: total.map_or(0, signed),
        used: signed(used),
        unit: unit.into(),
    }
}

fn mode(capability: Option<&VolumeCapability>) -> Result<Mode, CsiError> {
    let capability = capability.ok_or(CapabilityError::Missing)?;
    Ok(capability::parse(capability)?)
}

/// What blocks, such as mounting, on a thread for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CsiError> + Send + 'static,
) -> Result<T, CsiError> {
    tokio::task::spawn_blocking(work).await?
}

#[tonic::async_trait]
impl<M: Mounter> Node for NodeService<M> {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<Empty>, Status> {
        answer("NodeStageVolume", self.stage(request.into_inner()).await)
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<Empty>, Status> {
        answer(
            "NodeUnstageVolume",
            self.unstage(request.into_inner()).await,
        )
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<Empty>, Status> {
        answer(
            "NodePublishVolume",
            self.publish(request.into_inner()).await,
        )
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<Empty>, Status> {
        let unpublished = self.unpublish(request.into_inner()).await;
        answer("NodeUnpublishVolume", unpublished)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        answer("NodeGetVolumeStats", self.stats(&request.into_inner()))
    }

    async fn node_expand_volume(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        answer("NodeExpandVolume", Err(EXPANSION))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |offered: Rpc| NodeServiceCapability {
            r#type: Some(Type::Rpc(node_service_capability::Rpc {
                r#type: offered.into(),
            })),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: OFFERED.map(capability).to_vec(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.name.clone(),
        }))
    }
}
