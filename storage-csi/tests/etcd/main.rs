//! The file system as processes over a real etcd. Where that is not built, the tests count as ignored, with the reason.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "test harness"
)]

mod chains;
mod files;
mod posix;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use storage_cell::{CellOptions, CellPrograms, StorageCell, etcd_program};

/// A file system of one chain.
fn start_cell(etcd: &Path) -> StorageCell {
    start_cell_with(etcd, CellOptions::default())
}

fn start_cell_with(etcd: &Path, options: CellOptions) -> StorageCell {
    let programs = CellPrograms {
        etcd: etcd.to_owned(),
        storage_csi: env!("CARGO_BIN_EXE_storage-csi").into(),
    };
    StorageCell::start(&programs, options)
}

type Test = (&'static str, fn(&Path));

/// Names a list of tests as the functions are called.
macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((stringify!($name), $module::$name as fn(&Path))),*]
    };
}

const TESTS: [Test; 10] = tests![
    chains::three_services_keep_what_was_written_when_each_is_killed_under_load,
    chains::a_service_is_ready_when_all_chains_of_its_disks_are_complete,
    chains::a_manager_and_etcd_may_be_away_while_chains_serve,
    files::two_mounts_share_what_is_closed,
    files::everything_may_be_killed_while_files_are_written,
    files::what_is_deleted_is_free_again,
    files::a_full_disk_is_enospc_and_deletes_work,
    files::names_are_refused_before_removals_could_fail,
    files::a_replica_that_is_spoiled_is_not_served_and_is_repaired,
    files::a_volume_that_is_not_there_is_refused_by_name,
];

/// Tests that need a program of others, too.
const WITH_PROGRAMS: [(&str, Test); 2] = [
    (
        "pjdfstest",
        (
            "posix_pjdfstest_is_clean_for_what_is_offered",
            posix::posix_pjdfstest_is_clean_for_what_is_offered,
        ),
    ),
    (
        "fsx",
        (
            "posix_fsx_finds_no_wrong_byte",
            posix::posix_fsx_finds_no_wrong_byte,
        ),
    ),
];

fn main() -> ExitCode {
    let etcd: Result<PathBuf, String> = etcd_program();
    let plain = TESTS.map(|test| (Ok(()), test));
    let with = WITH_PROGRAMS.map(|(program, test)| (posix::program(program).map(drop), test));
    sim::run_tests(
        plain
            .into_iter()
            .chain(with)
            .map(|(program, (name, test))| {
                let etcd = program.and_then(|()| etcd.clone());
                (name.to_owned(), etcd.map(|etcd| move || test(&etcd)))
            }),
    )
}
