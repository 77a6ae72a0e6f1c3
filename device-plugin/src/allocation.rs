//! What a container is given: which devices to prefer, and the environment and mounts that go with
//! the devices it got. Pure; the calls that ask are `service`'s.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Status;
use topology::preference::{self, GpuSet};

use crate::backend::Inventory;
use crate::pb::v1beta1::{ContainerAllocateResponse, ContainerPreferredAllocationRequest, Mount};
use crate::resource::{PluginDevice, Resource, slot_id};

/// UUIDs of the container's GPUs, in the order of their PCI addresses.
pub const ENV_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Bridged pairs among them, by position in [`ENV_VISIBLE_DEVICES`], as in `0-1,2-3`.
pub const ENV_GPU_PAIRS: &str = "FIREFLYER_GPU_PAIRS";
/// Groups among them that share a root port, by position too, as in `5-6`.
pub const ENV_ROOT_PORT_SHARED: &str = "FIREFLYER_ROOT_PORT_SHARED";
/// Adapter ports for NCCL; `=` makes it match names exactly.
pub const ENV_NCCL_IB_HCA: &str = "NCCL_IB_HCA";
/// Whether NCCL may let the adapter write in relaxed order: 1 or 0.
pub const ENV_NCCL_RELAXED_ORDERING: &str = "NCCL_IB_PCI_RELAXED_ORDERING";

/// Why a call of the kubelet's is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// A container with no device.
    #[error("a container asks for no device of {resource}; ask for at least one")]
    Empty {
        /// The resource.
        resource: &'static str,
    },
    /// One device twice for one container.
    #[error("device {id} of {resource} is named twice")]
    Twice {
        /// The resource.
        resource: &'static str,
        /// The device.
        id: String,
    },
    /// A device that this node has not, or no longer.
    #[error("this node has no device {id} of {resource}; it has {known}")]
    Unknown {
        /// The resource.
        resource: &'static str,
        /// The device.
        id: String,
        /// How many there are.
        known: usize,
    },
    /// A device that broke after the kubelet chose it.
    #[error("device {id} of {resource} is broken: {reason}")]
    Broken {
        /// The resource.
        resource: &'static str,
        /// The device.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A number of devices below one.
    #[error("failed to choose {size} devices of {resource}; ask for at least one")]
    Size {
        /// The resource.
        resource: &'static str,
        /// How many were asked for.
        size: i32,
    },
    /// A question that this plugin said it does not answer.
    #[error("devices of {resource} are all alike: there is nothing to prefer")]
    NoPreference {
        /// The resource.
        resource: &'static str,
    },
    /// No set of devices answers the question.
    #[error("no set of GPUs satisfies the request: {0}")]
    Impossible(#[from] preference::Error),
}

impl From<AllocationError> for Status {
    fn from(refusal: AllocationError) -> Self {
        let message = refusal.to_string();
        match refusal {
            AllocationError::Empty { .. }
            | AllocationError::Twice { .. }
            | AllocationError::Size { .. }
            | AllocationError::Impossible(_) => Self::invalid_argument(message),
            AllocationError::Unknown { .. } => Self::not_found(message),
            AllocationError::Broken { .. } => Self::failed_precondition(message),
            AllocationError::NoPreference { .. } => Self::unimplemented(message),
        }
    }
}

/// What one container needs to use the devices it was given.
pub fn allocate(
    resource: Resource,
    inventory: &Inventory,
    ids: &[String],
) -> Result<ContainerAllocateResponse, AllocationError> {
    let devices = resource.devices(inventory);
    let chosen = positions(resource, &devices, ids)?;
    if chosen.is_empty() {
        return Err(AllocationError::Empty {
            resource: resource.name(),
        });
    }
    for position in &chosen {
        if let Some(reason) = &devices[*position].fault {
            return Err(AllocationError::Broken {
                resource: resource.name(),
                id: devices[*position].id.clone(),
                reason: reason.clone(),
            });
        }
    }
    Ok(match resource {
        Resource::Gpu => gpus(inventory, &chosen),
        Resource::Rdma => slots(inventory, ids),
        Resource::Node => ContainerAllocateResponse::default(),
    })
}

/// Which devices one container should get.
pub fn prefer(
    resource: Resource,
    inventory: &Inventory,
    request: &ContainerPreferredAllocationRequest,
) -> Result<Vec<String>, AllocationError> {
    if !resource.has_preference() {
        return Err(AllocationError::NoPreference {
            resource: resource.name(),
        });
    }
    let size = match usize::try_from(request.allocation_size) {
        Ok(0) | Err(_) => {
            return Err(AllocationError::Size {
                resource: resource.name(),
                size: request.allocation_size,
            });
        }
        Ok(size) => size,
    };
    let devices = resource.devices(inventory);
    let set = |ids| -> Result<GpuSet, AllocationError> {
        Ok(positions(resource, &devices, ids)?.into_iter().collect())
    };
    let broken =
        |(position, device): (usize, &PluginDevice)| device.fault.as_ref().map(|_| position);
    let chosen = preference::prefer(
        &inventory.node,
        set(&request.available)?,
        set(&request.must_include)?,
        devices.iter().enumerate().filter_map(broken).collect(),
        size,
    )?;
    Ok(chosen
        .indices()
        .map(|position| devices[position].id.clone())
        .collect())
}

/// Where the named devices are in the list, each once, lowest first.
fn positions(
    resource: Resource,
    devices: &[PluginDevice],
    ids: &[String],
) -> Result<BTreeSet<usize>, AllocationError> {
    let known: BTreeMap<&str, usize> = devices
        .iter()
        .enumerate()
        .map(|(position, device)| (device.id.as_str(), position))
        .collect();
    let mut chosen = BTreeSet::new();
    for id in ids {
        let Some(position) = known.get(id.as_str()) else {
            return Err(AllocationError::Unknown {
                resource: resource.name(),
                id: id.escape_default().to_string(),
                known: devices.len(),
            });
        };
        if !chosen.insert(*position) {
            return Err(AllocationError::Twice {
                resource: resource.name(),
                id: id.clone(),
            });
        }
    }
    Ok(chosen)
}

fn gpus(inventory: &Inventory, chosen: &BTreeSet<usize>) -> ContainerAllocateResponse {
    let node = &inventory.node;
    let uuids: Vec<&str> = chosen
        .iter()
        .map(|position| node.gpus()[*position].uuid.as_str())
        .collect();
    // The container counts its own GPUs from 0, in the order in which it sees them.
    let seen_as = |gpu: &usize| chosen.iter().position(|chosen| chosen == gpu);
    let group = |gpus: &[usize]| {
        let inside: Vec<usize> = gpus.iter().filter_map(seen_as).collect();
        (inside.len() > 1).then(|| joined(&inside, "-"))
    };
    let pairs: Vec<String> = node
        .nvlinks()
        .iter()
        .filter_map(|(one, other)| group(&[*one, *other]))
        .collect();
    let ports = node.shared_root_ports();
    let shared: Vec<String> = ports.iter().filter_map(|gpus| group(gpus)).collect();
    ContainerAllocateResponse {
        envs: environment([
            (ENV_VISIBLE_DEVICES, uuids.join(",")),
            (ENV_GPU_PAIRS, pairs.join(",")),
            (ENV_ROOT_PORT_SHARED, shared.join(",")),
        ]),
        mounts: mounts(inventory, &uuids),
    }
}

fn slots(inventory: &Inventory, ids: &[String]) -> ContainerAllocateResponse {
    let used =
        inventory.node.hcas().iter().filter(|hca| {
            (0..hca.slots).any(|slot| ids.contains(&slot_id(&hca.name, hca.port, slot)))
        });
    let (mut ports, mut names, mut relaxed) = (Vec::new(), Vec::new(), true);
    for hca in used {
        ports.push(format!("{}:{}", hca.name, hca.port));
        names.push(hca.name.as_str());
        relaxed &= hca.relaxed_ordering;
    }
    ContainerAllocateResponse {
        envs: environment([
            (ENV_NCCL_IB_HCA, format!("={}", ports.join(","))),
            (ENV_NCCL_RELAXED_ORDERING, u8::from(relaxed).to_string()),
        ]),
        mounts: mounts(inventory, &names),
    }
}

fn environment<const N: usize>(variables: [(&str, String); N]) -> BTreeMap<String, String> {
    variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn mounts(inventory: &Inventory, names: &[&str]) -> Vec<Mount> {
    let files: BTreeSet<_> = names
        .iter()
        .filter_map(|name| inventory.access.get(*name))
        .flatten()
        .collect();
    files
        .into_iter()
        .map(|mount| Mount {
            container_path: mount.container.display().to_string(),
            host_path: mount.host.display().to_string(),
            read_only: true,
        })
        .collect()
}

fn joined(numbers: &[usize], separator: &str) -> String {
    let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    texts.join(separator)
}

#[cfg(test)]
#[path = "allocation_tests.rs"]
mod tests;
