//! Limits of the endpoints for health and metrics that every process has.

use std::time::Duration;

/// Connections at once: some probes and scrapers, each with one.
///
/// - Unit: connections
/// - At the limit: dropped: the oldest of the address that has most makes room
/// - Test: `a_probe_is_answered_while_others_hold_a_thousand_idle_connections`
pub(crate) const CONNECTIONS: usize = 64;

/// Time for the head of a request, from the connection or from the answer before it.
///
/// - At the limit: ends: the connection is closed
/// - Test: `a_connection_that_asks_nothing_or_half_a_question_is_closed`
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(5);
