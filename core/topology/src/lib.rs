//! What hardware there is and how it hangs together: names of nodes, zones, leaves and classes, and the
//! model of what is inside one node. Leaves reading it from files or sysfs to `device-plugin`, and where
//! jobs go to `scheduler`.

mod address;
pub mod names;
pub mod node;
pub mod preference;

pub use names::{Class, Leaf, NodeName, Zone};
