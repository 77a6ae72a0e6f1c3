//! The driver with real mounts: a process of this program serves both its sockets and the file
//! systems, the tests are its kubelet and its pods. In a mount namespace of this program's own;
//! where nothing can be mounted, every test counts as ignored, with the reason.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test harness, and its own runner"
)]

#[path = "../common/mod.rs"]
mod common;
mod driver;
mod faults;
mod kubelet;
#[expect(dead_code, reason = "the tests of fuse need more of it")]
#[path = "../../../fuse/tests/kernel/memory.rs"]
mod memory;
mod mounts;
#[path = "../../../fuse/tests/kernel/namespace.rs"]
mod namespace;
mod sanity;
#[path = "../../../fuse/tests/kernel/tree.rs"]
mod tree;

use std::process::ExitCode;

use namespace::NamedTest;

/// Names a list of tests as the functions are called.
macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        vec![$((stringify!($name).to_owned(), Ok($module::$name as fn()))),*]
    };
}

fn main() -> ExitCode {
    if let Some(role) = driver::role() {
        return role;
    }
    let mut tests: Vec<NamedTest> = tests![
        mounts::pods_share_a_volume_that_is_mounted_once_on_their_node,
        mounts::a_pod_that_asked_for_reading_cannot_write,
        mounts::a_volume_for_readers_is_written_by_nobody,
        mounts::a_volume_for_one_pod_is_refused_to_a_second,
        mounts::mounts_of_others_are_left_alone,
        mounts::a_mount_that_is_used_is_not_taken_away,
        mounts::calls_at_once_make_one_mount,
        mounts::figures_are_those_of_the_mounter,
        faults::a_dead_mount_is_replaced_for_a_new_pod,
        faults::dead_mounts_are_taken_away_although_files_of_them_are_open,
        faults::an_aborted_mount_is_replaced_by_the_process_that_served_it,
        faults::a_stalled_volume_keeps_neither_figures_nor_other_volumes_waiting,
        faults::a_driver_that_is_killed_while_its_volume_stalls_ends_with_its_mounts,
        faults::a_call_goes_on_to_its_end_without_its_caller,
    ];
    let sanity = sanity::program().map(|_| sanity::csi_sanity_finds_nothing as fn());
    tests.push(("csi_sanity_finds_nothing".to_owned(), sanity));
    namespace::run(tests)
}
