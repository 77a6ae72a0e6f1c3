//! Answers the kubelet's calls for one resource. What the answers are is decided in `allocation`;
//! which socket they go out on is `plugin`'s business.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::{self, Stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::allocation::{self, AllocationError};
use crate::backend::Inventory;
use crate::metrics::Metrics;
use crate::pb::v1beta1::device_plugin_server::DevicePlugin;
use crate::pb::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device as PbDevice,
    DevicePluginOptions, Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
    TopologyInfo,
};
use crate::pb::{HEALTHY, UNHEALTHY};
use crate::resource::{PluginDevice, Resource};

/// The calls of one plugin on one socket.
#[derive(Debug)]
pub struct Service {
    /// What is served.
    pub resource: Resource,
    /// The devices, now and later.
    pub inventory: watch::Receiver<Arc<Inventory>>,
    /// How many streams of ListAndWatch are open.
    pub streams: watch::Sender<usize>,
    /// Cancelled when the socket closes: streams end then.
    pub closing: CancellationToken,
    /// Where calls are counted.
    pub metrics: Metrics,
}

impl Service {
    /// Which optional calls the kubelet may make.
    pub fn options(resource: Resource) -> DevicePluginOptions {
        DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: resource.has_preference(),
        }
    }

    /// The inventory of this moment: a call is answered from one, even if it changes meanwhile.
    fn now(&self) -> Arc<Inventory> {
        self.inventory.borrow().clone()
    }

    fn refused(&self, call: &'static str, refusal: AllocationError) -> Status {
        self.metrics.refused(self.resource, call);
        warn!(resource = self.resource.name(), call, reason = %refusal, "refused a call");
        refusal.into()
    }
}

/// The answers of ListAndWatch.
pub type Devices = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(Self::options(self.resource)))
    }

    type ListAndWatchStream = Devices;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Devices>, Status> {
        let follower = Follower {
            resource: self.resource,
            inventory: self.inventory.clone(),
            sent: None,
            closing: self.closing.clone(),
            _open: OpenStream::new(self.streams.clone()),
        };
        Ok(Response::new(Box::pin(stream::unfold(
            follower,
            Follower::next,
        ))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let inventory = self.now();
        let requests = request.into_inner().container_requests;
        let answers: Result<Vec<_>, AllocationError> = requests
            .iter()
            .map(|request| {
                let device_ids = allocation::prefer(self.resource, &inventory, request)?;
                Ok(ContainerPreferredAllocationResponse { device_ids })
            })
            .collect();
        let container_responses =
            answers.map_err(|refusal| self.refused("GetPreferredAllocation", refusal))?;
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let began = Instant::now();
        let inventory = self.now();
        let requests = request.into_inner().container_requests;
        let answers: Result<Vec<_>, AllocationError> = requests
            .iter()
            .map(|request| allocation::allocate(self.resource, &inventory, &request.device_ids))
            .collect();
        let container_responses = answers.map_err(|refusal| self.refused("Allocate", refusal))?;
        for request in &requests {
            info!(resource = self.resource.name(), devices = ?request.device_ids, "allocated");
            self.metrics
                .allocated(self.resource, began.elapsed().as_secs_f64());
        }
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// One open stream of ListAndWatch.
struct Follower {
    resource: Resource,
    inventory: watch::Receiver<Arc<Inventory>>,
    sent: Option<Vec<PluginDevice>>,
    closing: CancellationToken,
    _open: OpenStream,
}

impl Follower {
    /// The next answer: the whole set at once, then whenever it is another one. The stream ends
    /// with the socket or with the agent.
    async fn next(mut self) -> Option<(Result<ListAndWatchResponse, Status>, Self)> {
        loop {
            let devices = self.resource.devices(&self.inventory.borrow_and_update());
            if self.sent.as_ref() != Some(&devices) {
                let answer = ListAndWatchResponse {
                    devices: devices.iter().map(message).collect(),
                };
                self.sent = Some(devices);
                return Some((Ok(answer), self));
            }
            tokio::select! {
                () = self.closing.cancelled() => return None,
                changed = self.inventory.changed() => changed.ok()?,
            }
        }
    }
}

fn message(device: &PluginDevice) -> PbDevice {
    let health = match device.fault {
        Some(_) => UNHEALTHY,
        None => HEALTHY,
    };
    let numa = |id: u32| TopologyInfo {
        nodes: vec![NumaNode { id: i64::from(id) }],
    };
    PbDevice {
        id: device.id.clone(),
        health: health.to_owned(),
        topology: device.numa.map(numa),
    }
}

/// Counts a stream while it is open.
#[derive(Debug)]
struct OpenStream(watch::Sender<usize>);

impl OpenStream {
    fn new(streams: watch::Sender<usize>) -> Self {
        streams.send_modify(|open| *open += 1);
        Self(streams)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}
