//! Limits of the operator that tenants, sidecars and connections can reach.

use std::time::Duration;

/// Spec of a TrainingJob. The template of a larger one is not read.
///
/// - At the limit: refused, "TemplateTooLarge"
/// - Test: `a_template_is_read_up_to_the_limit_and_the_rest_of_its_spec_always`
pub const SPEC_LIMIT_BYTES: usize = 64 << 10;

/// Page of a listing. A page that would be larger is given up and asked for with fewer objects.
///
/// - At the limit: slowed: smaller pages
/// - Test: `a_page_is_as_large_as_its_objects_allow`
pub(crate) const PAGE_BYTES: u64 = 4 << 20;

/// Pods that ended well and are gone, which a replica remembers: those of two of the largest
/// gangs.
///
/// - Unit: pods
/// - At the limit: dropped: the oldest
/// - Test: `no_more_than_so_much_is_remembered`
pub(crate) const MOST_REMEMBERED: usize = 8192;

/// Time for which a replica remembers a pod that ended well and is gone: longer than another
/// takes to lead and to write it down.
///
/// - At the limit: ends: it is forgotten
/// - Test: `what_is_worth_it_is_remembered_for_five_minutes_however_it_goes`
pub(crate) const REMEMBERED_TIME: Duration = Duration::from_secs(300);

/// Connections to the rendezvous that have not proved that they know a key.
///
/// - Unit: connections
/// - At the limit: dropped: the oldest of the address that has most makes room
/// - Metric: `fireflyer_rendezvous_refused_total`
/// - Test: `members_join_while_others_hold_a_thousand_idle_connections`
pub(crate) const PENDING_CONNECTIONS: usize = 256;

/// Time of a connection to the rendezvous to prove that it knows a key.
///
/// - At the limit: ends: the connection is closed
/// - Metric: `fireflyer_rendezvous_refused_total`
/// - Test: `a_connection_that_proves_nothing_ends_within_two_seconds`
pub(crate) const PROOF_TIME: Duration = Duration::from_secs(2);

/// Large messages of all gangs that are handled at a time.
///
/// - At the limit: waits: the next is read when one is handled
/// - Test: `the_largest_frames_of_all_gangs_take_64_mib_and_the_next_waits_until_one_is_handled`
pub(crate) const LARGE_FRAMES_BYTES: usize = 64 << 20;

/// Large messages of one gang that are handled at a time: a holder of its key leaves room for the
/// others.
///
/// - At the limit: waits: the next is read when one is handled
/// - Test: `the_largest_frames_of_all_gangs_take_64_mib_and_the_next_waits_until_one_is_handled`
pub(crate) const GANG_FRAMES_BYTES: usize = 8 << 20;

/// Messages of a sidecar for each node of its gang that wait for the API server.
///
/// - Unit: messages
/// - At the limit: dropped: the connection is closed and dialed again
/// - Test: `while_the_store_does_not_answer_what_sidecars_say_is_bounded`
pub(crate) const DEFERRED_OF_NODE: usize = 64;

/// Messages of a gang beyond those of its nodes that wait for the API server.
///
/// - Unit: messages
/// - At the limit: dropped: the connection is closed and dialed again
/// - Test: `while_the_store_does_not_answer_what_sidecars_say_is_bounded`
pub(crate) const DEFERRED_OF_GANG: usize = 1024;

/// Value of a label or an annotation of ours that the operator reads.
///
/// - At the limit: dropped: it counts as absent
/// - Test: `a_value_that_is_too_long_counts_as_absent`
pub(crate) const VALUE_BYTES: usize = 1 << 10;
