//! TrainingJobs: observe, plan, apply. What to do is decided by `scheduler`; here is what it sees
//! and what carries it out.

pub mod apply;
pub mod assignments;
pub mod completed;
pub mod job_view;
pub mod members;
pub mod mirrored_job;
pub mod observe;
pub mod pod;
pub mod reconcile;
pub mod status;
pub mod translate;
pub mod write;
