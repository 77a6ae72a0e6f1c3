//! The service Registration: says to the kubelet who the driver is. The kubelet watches the folder of
//! the socket, and calls again whenever it starts; that the socket is there is `socket`'s business.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::{error, info};

use crate::DRIVER_NAME;
use crate::pb::pluginregistration::registration_server::Registration;
use crate::pb::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The kind of plugins that serve volumes.
const KIND: &str = "CSIPlugin";
/// A kubelet compares only the first number.
const INTERFACE_VERSION: &str = "1.11.0";

/// Where the kubelet looks for plugins. The sign `@` is needed: a kubelet that registers sends the
/// path, with `%2F` for each slash, as the authority of its requests, and our HTTP refuses a percent
/// sign there unless it is before an `@`.
pub(crate) fn socket_path(kubelet: &Path) -> PathBuf {
    let folder = kubelet.join("plugins_registry");
    folder.join(format!("kubelet@{DRIVER_NAME}-reg.sock"))
}

#[derive(Debug)]
pub(crate) struct RegistrationService {
    /// Where the services of the node are, as the kubelet names it.
    pub(crate) endpoint: String,
    /// Whether the kubelet says that it has registered the driver.
    pub(crate) registered: watch::Sender<bool>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![INTERFACE_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = status.into_inner();
        self.registered.send_replace(plugin_registered);
        if plugin_registered {
            info!("the kubelet has registered the driver");
        } else {
            // It tries again by itself.
            error!(error, "the kubelet did not register the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
