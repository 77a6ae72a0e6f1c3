//! The extended resources that this agent serves, and the devices each consists of. Owns device
//! IDs; which of them a container gets is `allocation`'s.

use crds::names;

use crate::backend::Inventory;

/// One extended resource, served by a plugin of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// GPUs, one device each.
    Gpu,
    /// Slots of the node's adapters.
    Rdma,
    /// The node itself, once: whoever holds it has the node alone.
    Node,
}

/// One device as the kubelet sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDevice {
    /// At most 63 characters, unique within the resource.
    pub id: String,
    /// What is wrong with it, if anything.
    pub fault: Option<String>,
    /// The NUMA node that a container using it should run on.
    pub numa: Option<u32>,
}

/// The one device of [`Resource::Node`].
const NODE_ID: &str = "node";

impl Resource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Rdma, Self::Node];

    /// The name that pods ask for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => names::RESOURCE_GPU,
            Self::Rdma => names::RESOURCE_RDMA,
            Self::Node => names::RESOURCE_NODE,
        }
    }

    /// What the process waits for until the kubelet listens to this plugin.
    pub fn gate(self) -> &'static str {
        match self {
            Self::Gpu => "kubelet to follow nvidia.com/gpu",
            Self::Rdma => "kubelet to follow fireflyer.dev/rdma",
            Self::Node => "kubelet to follow fireflyer.dev/node",
        }
    }

    /// The part of the socket's name that differs between the plugins.
    pub fn stem(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Rdma => "rdma",
            Self::Node => "node",
        }
    }

    /// Whether the kubelet should ask this plugin which devices to take: only GPUs differ.
    pub fn has_preference(self) -> bool {
        self == Self::Gpu
    }

    /// The devices of this resource, in a fixed order.
    pub fn devices(self, inventory: &Inventory) -> Vec<PluginDevice> {
        let fault = |name: &str| inventory.faults.get(name).cloned();
        match self {
            Self::Gpu => {
                let gpus = inventory.node.gpus().iter();
                gpus.map(|gpu| PluginDevice {
                    id: gpu.uuid.clone(),
                    fault: fault(&gpu.uuid),
                    numa: Some(gpu.numa),
                })
                .collect()
            }
            // No NUMA hint: with one adapter, a kubelet that wants all devices of a pod on one NUMA
            // node would refuse every pod whose GPUs are on the other.
            Self::Rdma => {
                let hcas = inventory.node.hcas().iter();
                hcas.flat_map(|hca| {
                    (0..hca.slots).map(|slot| PluginDevice {
                        id: slot_id(&hca.name, hca.port, slot),
                        fault: fault(&hca.name),
                        numa: None,
                    })
                })
                .collect()
            }
            Self::Node => vec![PluginDevice {
                id: NODE_ID.to_owned(),
                fault: None,
                numa: None,
            }],
        }
    }
}

/// The ID of an adapter's slot, as in `mlx5_0-1-03`.
pub(crate) fn slot_id(hca: &str, port: u8, slot: u16) -> String {
    format!("{hca}-{port}-{slot:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn ids(resource: Resource) -> Vec<String> {
        let devices = resource.devices(&testing::inventory());
        devices.into_iter().map(|device| device.id).collect()
    }

    #[test]
    fn the_papers_node_has_eight_gpus_eight_slots_and_itself() {
        assert_eq!(ids(Resource::Gpu).len(), 8);
        let slots = ids(Resource::Rdma);
        assert_eq!(slots.len(), 8);
        assert_eq!(slots[3], "mlx5_0-1-03");
        assert_eq!(ids(Resource::Node), ["node"]);
    }

    #[test]
    fn a_broken_adapter_breaks_all_its_slots() {
        let mut inventory = testing::inventory();
        inventory
            .faults
            .insert("mlx5_0".to_owned(), "link down".to_owned());
        let slots = Resource::Rdma.devices(&inventory);
        assert!(
            slots
                .iter()
                .all(|slot| slot.fault.as_deref() == Some("link down"))
        );
        let gpus = Resource::Gpu.devices(&inventory);
        assert!(gpus.iter().all(|gpu| gpu.fault.is_none()));
    }

    #[test]
    fn ids_fit_what_the_kubelet_takes() {
        let longest = slot_id(&"x".repeat(topology::node::MAX_NAME), 255, 98);
        assert!(longest.len() <= 63, "{}", longest.len());
    }
}
