//! The transport against the real kernel: a small file system in memory is mounted in a mount
//! namespace of this program's own, so that no mount outlives it. Needs root, `/dev/fuse` and
//! `unshare`; where they are not, every test counts as ignored, with the reason.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test harness, and its own runner"
)]

mod caches;
mod content;
mod memory;
mod mounted;
mod names;
mod namespace;
mod processes;
mod rates;
mod tree;

use std::process::ExitCode;

type Test = (&'static str, fn());

/// Names a list of tests as the functions are called.
macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((stringify!($name), $module::$name as fn())),*]
    };
}

const TESTS: [Test; 19] = tests![
    content::files_of_any_size_and_offset_read_back_what_was_written,
    content::a_write_comes_whole_up_to_the_limit,
    content::readers_see_what_writers_have_written,
    content::a_file_is_cut_off_and_filled_up,
    content::a_file_without_a_name_is_there_until_it_is_closed,
    names::names_that_are_there_and_are_not_get_their_errors,
    names::a_rename_replaces_exchanges_or_refuses,
    names::links_lead_where_they_were_made,
    names::a_list_of_ten_thousand_names_is_complete,
    names::statfs_tells_what_the_file_system_says,
    caches::a_notification_makes_a_change_elsewhere_visible,
    caches::a_file_that_is_opened_again_shows_a_change_elsewhere,
    processes::a_panic_or_a_dropped_request_is_eio_and_the_mount_goes_on,
    processes::an_interrupt_names_the_request_that_a_program_waits_for,
    processes::a_mount_whose_process_died_is_dead_and_can_be_detached,
    processes::a_successor_answers_what_was_read_and_programs_see_no_error,
    processes::processes_that_are_killed_again_and_again_are_not_noticed,
    processes::a_mount_is_told_from_nothing_and_from_somebody_elses,
    rates::rates,
];

fn main() -> ExitCode {
    if let Some(role) = processes::role() {
        return role;
    }
    let tests = TESTS.map(|(name, test)| (name.to_owned(), Ok(test)));
    namespace::run(tests.to_vec())
}
