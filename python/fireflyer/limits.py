"""Limits that a script, a checkpoint or another process of the node can reach."""

from __future__ import annotations

#: Depth of callbacks inside callbacks from which on they share threads.
#:
#: - Unit: levels
#: - At the limit: slowed: deeper ones take turns with those of that depth
#: - Test: `test_callbacks_inside_sixteen_others_take_turns`
CALLBACK_DEPTH = 16

#: Callbacks of a depth that run at once.
#:
#: - Unit: callbacks
#: - At the limit: refused, "callbacks of futures run, and none has ended for"
#: - Test: `test_a_callback_that_runs_for_long_is_passed_and_at_the_bound_futures_become_errors`,
#:   with 2
CALLBACKS_BESIDE = 16

#: Time that a callback runs before the next one begins beside it.
#:
#: - At the limit: ends: the next one does not wait for it
#: - Test: `test_a_callback_that_runs_for_long_is_passed_and_at_the_bound_futures_become_errors`,
#:   with 50 ms
CALLBACK_SECONDS = 5

#: Manifest of a checkpoint: a million tensors at 256 bytes each.
#:
#: - At the limit: refused, "can be read: "
#: - Test: `test_a_manifest_that_nobody_could_read_is_not_written`, with a byte less than it has
MANIFEST_LIMIT_BYTES = 256 << 20

#: Levels of nesting of a state that is saved.
#:
#: - Unit: levels
#: - At the limit: refused, "it is nested more than"
#: - Test: `test_a_state_may_be_64_levels_deep`
STATE_DEPTH = 64

#: Time between two reports of progress; the sidecar reads it as often.
#:
#: - At the limit: slowed: the steps between are not reported
#: - Test: `test_steps_are_reported_at_most_once_a_second`
PERIOD_SECONDS = 1

#: Text that is reported to the platform.
#:
#: - Unit: characters
#: - At the limit: dropped: the end of the text
#: - Test: `test_a_text_of_more_than_five_hundred_characters_is_cut`
TEXT_LIMIT = 500

#: Time of a sidecar that has a socket to answer a process.
#:
#: - At the limit: ends: no group is made, and the error says so
#: - Test: `test_a_sidecar_that_does_not_answer_is_an_error`, with 50 ms
ATTACH_SECONDS = 60

#: Time that the end of a group waits for operations that are still in flight.
#:
#: - At the limit: ends: it does not wait for the others
#: - Test: `test_a_callback_that_waits_for_ever_keeps_neither_a_group_nor_a_child_nor_an_end`
CLOSE_SECONDS = 2

#: Time of one process of a pair of GPUs for the other's connections, once both have said that
#: they are there.
#:
#: - At the limit: ends: tensors take the ordinary way
#: - Test: `test_who_does_not_come_or_greet_in_time_is_not_waited_for`, with 50 ms
JOIN_SECONDS = 60

#: Time of a connection between two processes of a pair to show that it knows the key.
#:
#: - At the limit: ends: the connection is closed
#: - Test: `test_who_does_not_come_or_greet_in_time_is_not_waited_for`, with 50 ms
GREETING_SECONDS = 5

#: Connections without the key that are turned away before a process of a pair gives up.
#:
#: - Unit: connections
#: - At the limit: refused, "too many connections without the key"
#: - Test: `test_sixty_four_strangers_are_turned_away_and_no_more`
STRANGERS_LIMIT = 64

#: Time of a sidecar that restarts to write who the members are.
#:
#: - At the limit: refused, "the sidecar writes it when its gang has joined"
#: - Test: `test_members_that_nobody_writes_are_an_error`, with no time
ROSTER_SECONDS = 60

#: Time of a server of the store to accept a connection: it has run since the process group was
#: made.
#:
#: - At the limit: ends: the call is an error
#: - Test: `test_a_server_has_less_time_to_accept_a_connection_than_to_answer`
CONNECT_SECONDS = 10

#: Time after its timeout for a call of the store to return: then its server does not answer.
#:
#: - At the limit: ends: the call is an error
#: - Test: `test_a_server_that_says_nothing_costs_no_more_than_the_timeout`, with no time
STORE_SECONDS = 2

#: Processes of a node of `fireflyer run`; the API allows no more.
#:
#: - Unit: processes
#: - At the limit: refused, "use a multiple of the nodes"
#: - Test: `test_what_cannot_run_is_refused_with_what_to_do`
PROCS_LIMIT = 64

#: Time that the other processes of `fireflyer run` may go on once one has failed, and that any may
#: take to end when asked.
#:
#: - At the limit: ends: they are asked to end, then killed
#: - Test: `test_the_first_failure_is_the_status_and_nobody_is_left_behind`, with 200 ms
GRACE_SECONDS = 10

#: Time of the sidecars of `fireflyer run` to join.
#:
#: - At the limit: refused, "did not join. The sidecars' output:"
#: - Test: `test_sidecars_that_do_not_join_in_time_are_an_error`, with no time
READY_SECONDS = 30
