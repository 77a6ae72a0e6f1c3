//! The API of Fire-Flyer (group `fireflyer.dev`): types, validation rules, names of labels,
//! resources and conditions. No client: anything may use these types cheaply.

pub mod cases;
pub mod definition;
pub mod fabric;
pub mod names;
pub mod node_validation;
pub mod node_validation_policy;
mod schema;
pub mod storage_chain;
pub mod storage_pool;
pub mod template;
pub mod training_job;

pub use fabric::{Fabric, FabricSpec};
pub use node_validation::{NodeValidation, NodeValidationSpec, NodeValidationStatus};
pub use node_validation_policy::{
    NodeValidationPolicy, NodeValidationPolicySpec, NodeValidationPolicyStatus,
};
pub use storage_chain::{StorageChain, StorageChainSpec, StorageChainStatus};
pub use storage_pool::{StoragePool, StoragePoolSpec, StoragePoolStatus};
pub use training_job::{TrainingJob, TrainingJobSpec, TrainingJobStatus};
