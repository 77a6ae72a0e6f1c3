//! Limits of a check: the time that it has, and what it may say.

use std::time::Duration;

/// Part of the task's deadline that the checks may use. The rest is for the pod's start and for
/// the way of the report.
///
/// - Unit: percent
/// - At the limit: slowed: each check measures for less time
/// - Test: `no_run_goes_past_its_deadline`
pub(crate) const SHARE_PERCENT: u32 = 90;

/// Times as long as it measures, beside the time to start: data has to be made, too.
///
/// - Unit: times
/// - At the limit: ends: the check is killed, and is an error
/// - Test: `a_check_that_crashes_hangs_or_lies_is_an_error_and_the_others_go_on`
pub(crate) const PATIENCE: u32 = 2;

/// Time that the process of a check may take besides, for its start and its end.
///
/// - At the limit: ends: the check is killed, and is an error
/// - Test: `a_check_that_crashes_hangs_or_lies_is_an_error_and_the_others_go_on`
pub(crate) const START: Duration = Duration::from_secs(2);

/// What a check says: 32 results of 300 bytes, and room.
///
/// - At the limit: refused, "said more than"
/// - Test: `a_child_may_say_32_kib_and_is_killed_for_a_byte_more`
pub(crate) const OUTPUT_BYTES: usize = 32 << 10;

/// Devices of a check: more than a node has of any kind.
///
/// - Unit: devices
/// - At the limit: refused, "reported more than"
/// - Test: `nothing_doubled_or_impossible_is_an_error`
pub(crate) const MAX_DEVICES: usize = 16;

/// Time in which a partner node says and takes something while the network is measured.
///
/// - At the limit: ends: the check is an error
/// - Test: `a_partner_that_says_nothing_is_given_up`, with 10 ms
pub(crate) const QUIET: Duration = Duration::from_secs(10);
