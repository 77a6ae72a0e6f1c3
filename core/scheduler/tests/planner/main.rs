//! Tests of the planner as a whole: single decisions, properties over random clusters, and whole
//! lives of jobs in a simulated cluster whose operator is killed after every write.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test harness fails by panicking, and looks for one variant among many"
)]

mod absence;
mod blinks;
mod build;
mod checkpoints;
mod claims;
mod completed;
mod crowd;
mod decisions;
mod dry_run;
mod events;
mod forged;
mod gangs;
mod history;
mod late;
mod life;
mod mutations;
mod nodes;
mod pauses;
mod properties;
mod repeated;
mod shrunken;
mod speed;
mod stale;
mod stall;
mod starting;
mod under_way;
mod validation;
mod world;
