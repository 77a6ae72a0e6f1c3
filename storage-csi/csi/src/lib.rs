//! The CSI driver `csi.fireflyer.dev`: answers csi-provisioner and the kubelet on unix sockets, mounts
//! volumes into the folders of pods, and registers with the kubelet by itself. Where volumes are kept
//! and who serves their mounts belongs to whoever implements [`VolumeStore`] and [`Mounter`].

mod capability;
mod controller;
mod error;
mod identity;
mod mounter;
mod node;
mod parameters;
pub mod pb;
mod registration;
pub mod serve;
mod size;
mod socket;
mod volume_store;

pub use mounter::{MountError, MountUsage, Mounter};
pub use parameters::VolumeRoot;
pub use volume_store::{
    StoreUnavailable, VolumeCapacity, VolumeError, VolumeRecord, VolumeStore, WantedVolume,
};

/// What StorageClasses and volumes name as their provisioner.
pub const DRIVER_NAME: &str = "csi.fireflyer.dev";
