//! All scenarios, in the order in which the runner starts them where it may: first those that take the whole cluster, whose
//! nodes nobody has lost yet; then the longest, and those that break something, of which one runs at a time.

use std::time::Duration;

use crate::runner::{ALL, Needs, Scenario};
use crate::scenario;

pub mod api;
pub mod devices;
pub mod faults;
pub mod forged;
pub mod lifecycle;
pub mod memory;
pub mod scale;
pub mod shrink;
pub mod storage;
pub mod survival;
pub mod training;
pub mod upgrade;
pub mod validation;
pub mod volumes;

/// A gang of shell trainers starts within seconds; ten times that is the limit.
pub(crate) const START: Duration = Duration::from_secs(60);
/// The cluster under test calls a node lost after 8 to 10 s; ten times that is the limit.
const NODE_LOSS: Duration = Duration::from_secs(100);

/// Real nodes of the cluster: zones of two, so that a gang of three crosses zones.
pub const ZONES: [&str; 6] = ["a", "a", "b", "b", "c", "c"];
/// Real nodes of each zone.
pub(crate) const ZONE_NODES: u32 = 2;

/// Scenarios on real nodes (T4).
pub const REAL: &[Scenario] = &[
    // Its job may not be on the leader's node, wherever that is.
    scenario!(
        Needs::Breaks(ALL),
        faults::killed_leader_is_followed_without_a_restart
    ),
    // It cordons every node but its own.
    scenario!(
        Needs::Nodes(ALL),
        devices::kubelet_restart_keeps_job_and_devices
    ),
    // Two gangs over two zones each, of which one may cross at a time.
    scenario!(Needs::Intact(4), lifecycle::second_job_waits_for_the_first),
    scenario!(
        Needs::Nodes(2),
        training::hfreduce_and_gloo_train_the_same_model
    ),
    scenario!(
        Needs::Breaks(4),
        survival::cordoned_and_deleted_nodes_are_left_once_by_the_contract
    ),
    scenario!(
        Needs::Nodes(2),
        survival::slow_start_is_no_hang_and_a_taint_no_cordon
    ),
    scenario!(
        Needs::Breaks(3),
        survival::leader_that_is_stopped_in_mid_write_changes_nothing_when_it_wakes_up
    ),
    scenario!(
        Needs::LosesNodes(3),
        shrink::of_a_partition_one_side_goes_on_and_the_other_takes_no_step
    ),
    scenario!(
        Needs::Nodes(2),
        training::digits_reach_accuracy_over_hfreduce
    ),
    scenario!(
        Needs::LosesNodes(4),
        faults::killed_node_is_replaced_and_the_job_goes_on
    ),
    scenario!(
        Needs::Breaks(2),
        survival::restarted_runtime_and_patched_readiness_end_no_gang
    ),
    scenario!(
        Needs::Nodes(2),
        lifecycle::job_deleted_while_starting_leaves_nothing
    ),
    scenario!(
        Needs::Nodes(1),
        lifecycle::missing_image_is_a_condition_and_no_storm
    ),
    scenario!(Needs::Nodes(0), api::every_refusal_says_what_to_do),
    scenario!(
        Needs::Nodes(2),
        forged::nobody_else_decides_where_a_job_runs
    ),
    scenario!(
        Needs::Intact(2),
        lifecycle::suspended_job_saves_and_resumes_from_there
    ),
    scenario!(Needs::Nodes(2), faults::dead_rank_restarts_the_whole_gang),
    scenario!(
        Needs::Nodes(2),
        faults::survivors_that_cannot_save_are_removed_at_once
    ),
    scenario!(
        Needs::Nodes(2),
        faults::job_without_progress_says_where_it_stands_and_starts_again
    ),
    scenario!(
        Needs::Nodes(1),
        faults::failing_program_ends_with_its_last_words
    ),
    scenario!(
        Needs::Nodes(1),
        devices::trainer_sees_the_devices_of_its_node
    ),
    scenario!(
        Needs::LosesNodes(2),
        volumes::faults::killed_node_takes_its_mounts_along
    ),
    scenario!(
        Needs::Breaks(0),
        volumes::faults::killed_processes_of_storage_lose_no_write
    ),
    scenario!(
        Needs::Intact(0),
        volumes::claim_is_bound_and_pods_on_two_nodes_share_a_file
    ),
    scenario!(
        Needs::Breaks(0),
        volumes::faults::killed_mount_daemon_serves_new_pods
    ),
    scenario!(
        Needs::Intact(0),
        volumes::faults::spoiled_replica_is_never_read
    ),
    scenario!(
        Needs::Intact(0),
        volumes::claims_that_cannot_be_served_say_why
    ),
    scenario!(
        Needs::Intact(0),
        storage::fuse_mount_of_one_pod_serves_others
    ),
    scenario!(Needs::Intact(0), lifecycle::gang_that_cannot_fit_says_why),
    scenario!(
        Needs::Nodes(0),
        lifecycle::claim_of_one_node_is_refused_for_two
    ),
    scenario!(
        Needs::Nodes(1),
        lifecycle::finished_job_is_deleted_after_its_ttl
    ),
    scenario!(
        Needs::Nodes(1),
        lifecycle::compliant_job_runs_in_a_restricted_namespace
    ),
    scenario!(
        Needs::Nodes(1),
        api::refused_pod_is_reported_before_nodes_are_given
    ),
    scenario!(Needs::Nodes(0), api::nobody_else_takes_a_node),
    scenario!(
        Needs::Intact(0),
        upgrade::upgrade_that_forgets_storage_is_refused_while_there_are_volumes
    ),
    scenario!(Needs::Intact(0), api::agent_labels_its_own_node_only),
    scenario!(
        Needs::Intact(0),
        api::operator_changes_one_taint_of_a_node_only
    ),
    scenario!(
        Needs::Intact(0),
        api::only_agents_and_storage_need_more_than_restricted
    ),
    // Takes every other node, so that a job can only get the one that came back.
    scenario!(
        Needs::LosesNodes(ALL),
        shrink::node_dies_and_the_others_go_on_without_a_restart
    ),
    // A node of it is short of a GPU: no other job could run there.
    scenario!(
        Needs::Alone(2),
        validation::node_that_lost_a_gpu_is_in_quarantine_until_it_passes
    ),
    scenario!(
        Needs::Alone(2),
        validation::policy_validates_all_nodes_and_a_job_goes_on
    ),
    scenario!(
        Needs::Alone(1),
        validation::throttled_node_is_below_its_floor_and_in_quarantine
    ),
    scenario!(
        Needs::Alone(1),
        validation::claim_is_measured_beside_the_disk
    ),
    // It moves a node to another zone for a while.
    scenario!(
        Needs::Alone(3),
        validation::network::slow_link_fails_the_node_that_is_the_cause
    ),
    scenario!(Needs::Alone(0), volumes::costs::claims_can_be_used_soon),
    scenario!(
        Needs::Alone(0),
        volumes::costs::storage_at_rest_takes_little
    ),
    scenario!(
        Needs::Alone(0),
        volumes::faults::lost_storage_node_stops_writes_until_it_is_back
    ),
    scenario!(
        Needs::Alone(0),
        volumes::faults::volumes_do_not_need_the_control_plane
    ),
    scenario!(
        Needs::Alone(0),
        volumes::faults::full_disks_say_so_and_deletes_work
    ),
    // It cordons nodes.
    scenario!(
        Needs::Alone(0),
        volumes::faults::of_two_drained_storage_nodes_one_waits
    ),
    // It replaces the operators.
    scenario!(
        Needs::Alone(1),
        memory::large_objects_of_a_tenant_end_no_operator
    ),
    // The agents of all nodes are replaced, or gone: no pod of others starts meanwhile.
    scenario!(Needs::Alone(2), upgrade::chart_upgrade_interrupts_no_job),
    scenario!(
        Needs::Alone(2),
        upgrade::uninstall_keeps_jobs_and_reinstall_goes_on
    ),
];

/// Scenarios in which this machine itself connects to a pod.
pub const ROUTED: &[Scenario] = &[
    // Thousands of connections take the processors.
    scenario!(
        Needs::Alone(2),
        survival::idle_connections_cost_neither_lease_nor_members
    ),
];

/// Scenarios with parts of ours beside the control plane: a crashing operator, and what plays the
/// sidecars of simulated nodes (T5). The first replaces the operator, the others count everybody's writes.
pub const BESIDE: &[Scenario] = &[
    scenario!(
        Needs::Alone(2),
        upgrade::operator_killed_after_every_write_finishes_the_job
    ),
    scenario!(
        Needs::Alone(0),
        scale::hundred_jobs_on_two_hundred_nodes_all_finish
    ),
    scenario!(Needs::Alone(0), scale::quiet_minute_has_no_writes),
];
