//! Limits of the time that the kubelet has for a plugin.

use std::time::Duration;

/// Time of the kubelet to answer a registration: it dials us meanwhile, for up to 10 s.
///
/// - At the limit: ends: the registration is tried again
/// - Test: `a_kubelet_that_does_not_answer_a_registration_is_not_waited_for_longer`
pub(crate) const REGISTER_WITHIN: Duration = Duration::from_secs(12);

/// Time of the kubelet from its answer until it follows us.
///
/// - At the limit: ends: the plugin is registered again
/// - Test: `a_registration_that_nobody_follows_is_repeated`
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(10);

/// Time for calls in progress when a socket closes.
///
/// - At the limit: ends: the socket is removed
/// - Test: `a_connection_that_says_nothing_keeps_a_socket_no_longer`
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(1);
