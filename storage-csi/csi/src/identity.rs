//! The service Identity: who the driver is, and whether it is ready.

use std::future::Future;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::pb::csi::identity_server::Identity;
use crate::pb::csi::plugin_capability::service::Type as Service;
use crate::pb::csi::plugin_capability::{self, Type};
use crate::pb::csi::{
    Empty, GetPluginCapabilitiesResponse, GetPluginInfoResponse, PluginCapability, ProbeResponse,
};
use crate::{DRIVER_NAME, VolumeStore};

/// What the process has to wait for.
pub(crate) trait Part: Send + Sync + 'static {
    fn is_ready(&self) -> impl Future<Output = bool> + Send;
}

/// The controller's process is ready when its store is.
#[derive(Debug)]
pub(crate) struct StorePart<S>(pub(crate) Arc<S>);

impl<S: VolumeStore> Part for StorePart<S> {
    async fn is_ready(&self) -> bool {
        self.0.is_ready().await
    }
}

/// The node's process is ready when it answers.
#[derive(Debug)]
pub(crate) struct NodePart;

impl Part for NodePart {
    fn is_ready(&self) -> impl Future<Output = bool> + Send {
        std::future::ready(true)
    }
}

#[derive(Debug)]
pub(crate) struct IdentityService<P>(pub(crate) P);

#[tonic::async_trait]
impl<P: Part> Identity for IdentityService<P> {
    async fn get_plugin_info(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    /// Said of the driver, whichever of its processes is asked.
    async fn get_plugin_capabilities(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = plugin_capability::Service {
            r#type: Service::ControllerService.into(),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: vec![PluginCapability {
                r#type: Some(Type::Service(controller)),
            }],
        }))
    }

    async fn probe(&self, _: Request<Empty>) -> Result<Response<ProbeResponse>, Status> {
        let ready = Some(self.0.is_ready().await);
        Ok(Response::new(ProbeResponse { ready }))
    }
}
