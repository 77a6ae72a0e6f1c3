//! What hardware there is and how it hangs together: names of nodes, zones, leaves and classes, and
//! the model of what is inside one node; where on it the memory of a reduction lies. Leaves reading
//! it from files or sysfs to the programs, and where jobs go to `scheduler`.

mod address;
mod checkpoint_ref;
pub mod names;
pub mod node;
pub mod numa;
mod on_peer_loss;
pub mod placement;
pub mod preference;
pub mod progress;

pub use checkpoint_ref::CheckpointRef;
pub use names::{Class, Leaf, NodeName, Zone};
pub use on_peer_loss::OnPeerLoss;
pub use progress::{Progress, SignKind};
