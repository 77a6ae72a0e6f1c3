//! Bounds stand in a package's `limits.rs`, where the page of limits finds them. A constant whose
//! name is that of a bound is refused elsewhere, unless the list below says why it is none that a
//! user can reach.

use super::{File, Findings};
use crate::limits::has_rows;

/// Constants with the name of a bound that are no limit of the page.
struct Allowed {
    /// The file's path begins with this.
    path: &'static str,
    /// Names of constants; none means all of that path.
    names: &'static [&'static str],
    reason: &'static str,
}

const fn allow(
    path: &'static str,
    names: &'static [&'static str],
    reason: &'static str,
) -> Allowed {
    Allowed {
        path,
        names,
        reason,
    }
}

const FORMAT: &str = "size of a format or a unit, not a bound";
const STORAGE: &str = "storage has no rows yet";
const CUT: &str = "cuts a text that people read; nothing fails";
const STEP: &str = "size of one step of work that is done whole";
const OWN: &str = "paces or bounds our own retries; nobody is refused";
const CHECK: &str = "part of a check or a measurement that a person starts";
const CACHE: &str = "what is kept for reuse; more is made again";
const PEER: &str = "what a device or the kernel allows";

const ALLOWED: &[Allowed] = &[
    allow("core/chain-", &[], STORAGE),
    allow("core/chunk-store/", &[], STORAGE),
    allow("core/craq/", &[], STORAGE),
    allow("core/metadata/", &[], STORAGE),
    allow("storage-csi/", &[], STORAGE),
    allow("operator/src/storage/", &[], STORAGE),
    allow("contract/src/assignment.rs", &["NAME_LIMIT_BYTES"], PEER),
    allow("contract/src/validation.rs", &["NAME_LIMIT_BYTES"], PEER),
    allow("contract/src/identity.rs", &["IDENTITY_BYTES"], FORMAT),
    allow(
        "contract/src/run_dir.rs",
        &["ROSTER_LIMIT_BYTES"],
        "bounded by the nodes of a job",
    ),
    allow("contract/src/termination.rs", &["LOG_LIMIT_BYTES"], CUT),
    allow("core/collective/src/encoding", &[], FORMAT),
    allow("core/collective/src/known_sums.rs", &[], CHECK),
    allow(
        "core/collective/src/machine/config.rs",
        &["DEFAULT_CHUNK_BYTES", "MIN_CHUNK_BYTES"],
        "a default, and a flag's range in the page of flags",
    ),
    allow("core/collective/src/membership/recover.rs", &["PAUSE"], OWN),
    allow(
        "core/collective/src/membership/survivors.rs",
        &["MOST_ASKED"],
        OWN,
    ),
    allow(
        "core/collective/src/membership/suspicions.rs",
        &["MOST_SUSPECTS"],
        "bounded by a node's links",
    ),
    allow(
        "core/collective/src/op.rs",
        &["MAX_RESULT_BYTES"],
        "far above any machine's memory",
    ),
    allow("core/health/src/due/", &["LEAST_PAUSE", "MOST_PAUSE"], OWN),
    allow(
        "core/health/src/due/when.rs",
        &["MOST_JITTER_ONE_IN"],
        "spreads the times at which nodes are due",
    ),
    allow(
        "core/health/src/fleet.rs",
        &["MOST_VALUES"],
        "the newest values that a median is taken of",
    ),
    allow("core/health/src/report.rs", &["SHORT_BYTES"], CUT),
    allow(
        "core/scheduler/src/check.rs",
        &["CROSSING_LIMIT"],
        "name of an invariant",
    ),
    allow("core/sim/", &[], "simulations only"),
    allow(
        "core/topology/src/checkpoint_ref.rs",
        &["DIGEST_LIMIT_BYTES"],
        FORMAT,
    ),
    allow("daemon/src/endpoints.rs", &["ACCEPT_PAUSE"], OWN),
    allow(
        "device-plugin/src/backend/fixture.rs",
        &["MAX_BYTES"],
        "test clusters only",
    ),
    allow("device-plugin/src/folder.rs", &["EVENT_BYTES"], STEP),
    allow(
        "hfreduce-client/src/attach",
        &["PACKET_LIMIT_BYTES", "OPERATION_LIMIT", "RANKS_LIMIT"],
        FORMAT,
    ),
    allow(
        "hfreduce-client/src/client/state/",
        &["IDLE_LIMIT", "AWAY_LIMIT"],
        CACHE,
    ),
    allow(
        "hfreduce-client/src/cuda/abi.rs",
        &["IPC_HANDLE_BYTES"],
        FORMAT,
    ),
    allow("hfreduce-client/src/entry.rs", &["TEXT_LIMIT_BYTES"], CUT),
    allow("hfreduce-sidecar/src/bench/", &[], CHECK),
    allow(
        "hfreduce-sidecar/src/engine/",
        &["ACCEPT_PAUSE", "RECORD_PAUSE", "QUESTIONS_LIMIT"],
        OWN,
    ),
    allow(
        "hfreduce-sidecar/src/engine/",
        &["DRAIN_BYTES", "DRAIN_LIMIT"],
        "time of farewells; nobody waits for them",
    ),
    allow(
        "hfreduce-sidecar/src/engine/members.rs",
        &["MOST_NAMED"],
        CUT,
    ),
    allow(
        "hfreduce-sidecar/src/inspect.rs",
        &[],
        "`/ops` for people: the last snapshot is served",
    ),
    allow("hfreduce-sidecar/src/numa/", &["SAMPLE_BYTES"], CHECK),
    allow("hfreduce-sidecar/src/pool.rs", &["IDLE_LIMIT"], CACHE),
    allow(
        "hfreduce-sidecar/src/rendezvous/",
        &["LEAVE_LIMIT", "DIAL_LIMIT", "WRITE_LIMIT"],
        OWN,
    ),
    allow(
        "hfreduce-sidecar/src/serve.rs",
        &["ROSTER_LIMIT_BYTES"],
        "bounded by the nodes of a job",
    ),
    allow(
        "hfreduce-sidecar/src/session/inputs.rs",
        &["SEGMENT_LIMIT"],
        "bounded by what may be in flight",
    ),
    allow(
        "hfreduce-sidecar/src/workers.rs",
        &["DEFAULT_LIMIT", "THREAD_LIMIT", "FROM_BYTES"],
        "a default and a flag's range in the page of flags",
    ),
    allow(
        "launcher/src/output.rs",
        &["LINE_BYTES", "PATIENCE"],
        "a longer or slower line is passed on in parts",
    ),
    allow(
        "launcher/src/output.rs",
        &["STACK_BYTES"],
        "a thread's stack",
    ),
    allow(
        "link/src/connect/",
        &["PAUSE", "DIAL_LIMIT", "ARRIVAL_LIMIT", "OFFER_LIMIT_BYTES"],
        OWN,
    ),
    allow(
        "link/src/",
        &[
            "WORD_BYTES",
            "REALM_BYTES",
            "IDENTITY_BYTES",
            "HELLO_BYTES",
            "CHALLENGE_BYTES",
            "PROOF_BYTES",
            "NONCE_BYTES",
            "PREFIX_BYTES",
            "MAX_HEADER_BYTES",
            "KEY_BYTES",
            "PIECE_BYTES",
            "PAGE_BYTES",
            "CONTROL_BYTES",
            "UNIT_BYTES",
            "HUGE_BYTES",
            "DISCARD_BYTES",
            "AHEAD_BYTES",
            "SUM_BYTES",
            "LARGE_BYTES",
            "INVITATION_BYTES",
            "SLOT_BYTES",
            "USED_BYTES",
        ],
        FORMAT,
    ),
    allow("link/src/event_count.rs", &["WAIT_LIMIT"], PEER),
    allow("link/src/spin.rs", &["MOST_VAIN"], OWN),
    allow(
        "link/src/transport/verbs/",
        &["BLOCKS_LIMIT", "SLABS_LIMIT"],
        "bounded by what may be in flight; memory beyond is copied",
    ),
    allow(
        "link/src/verbs/",
        &["SLOTS_LIMIT", "NUMBER_LIMIT", "MOST_RETRIES"],
        PEER,
    ),
    allow("operator/src/bootstrap.rs", &["MASTER_BYTES"], FORMAT),
    allow("operator/src/condition.rs", &["TEXT_BYTES"], CUT),
    allow("operator/src/event.rs", &["NOTE_BYTES"], CUT),
    allow("operator/src/node_validation/verdict.rs", &[], CUT),
    allow("operator/src/proof.rs", &["ID_BYTES"], FORMAT),
    allow(
        "operator/src/rendezvous/session.rs",
        &["ACCEPT_PAUSE", "READ_BYTES"],
        OWN,
    ),
    allow(
        "operator/src/training_job/apply/mod.rs",
        &["REFUSAL_BYTES"],
        CUT,
    ),
    allow(
        "operator/src/training_job/reconcile",
        &["LONGEST_PAUSE", "FIRST_PAUSE", "PATIENCE"],
        OWN,
    ),
    allow(
        "python/fireflyer/",
        &[
            "_ITEM_BYTES",
            "KEY_BYTES",
            "_UUID_BYTES",
            "_HANDLE_BYTES",
            "_BYTES",
        ],
        FORMAT,
    ),
    allow(
        "python/fireflyer/",
        &["BUCKET_BYTES", "NVLINK_LEAST_BYTES"],
        "a default that a user sets",
    ),
    allow(
        "python/fireflyer/",
        &[
            "PART_BYTES",
            "READ_BYTES",
            "_SUM_BYTES",
            "LEFT_BYTES",
            "_TEXT_BYTES",
        ],
        STEP,
    ),
    allow("python/gpu/", &[], CHECK),
    allow("python/src/copying.rs", &["LONG_BYTES"], STEP),
    allow(
        "core/scheduler/src/job_planner/ending.rs",
        &["MOST_RESTARTS"],
        "bounded by maxRestarts, which the schema bounds",
    ),
    allow(
        "operator/src/training_job/members.rs",
        &["RESUME_BYTES"],
        "bounded by what may be in flight",
    ),
    allow(
        "validator/src/checks/",
        &[],
        "how much a check writes, reads and compares",
    ),
    allow(
        "validator/src/machine.rs",
        &["FILE_BYTES", "CACHE_BYTES"],
        "what is read of a file of the kernel, and taken for a cache",
    ),
    allow(
        "validator/src/process.rs",
        &["KILL_PATIENCE"],
        "a killed process is gone at once, unless a device hangs in the kernel",
    ),
];

/// Beginnings and ends of names that stand for a bound.
const BEGINNINGS: [&str; 1] = ["MOST_"];
const ENDS: [&str; 5] = ["_LIMIT", "_BYTES", "PATIENCE", "PAUSE", "INTERVAL"];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let mut used = vec![false; ALLOWED.len()];
    for file in files.iter().filter(|file| is_product(&file.path)) {
        for name in bounds(file) {
            let is_it = |allowed: &Allowed| {
                file.path.starts_with(allowed.path)
                    && (allowed.names.is_empty() || allowed.names.contains(&name))
            };
            match ALLOWED.iter().position(is_it) {
                Some(at) => used[at] = true,
                None => findings.errors.push(format!(
                    "{}: {name} is named like a bound: declare it in limits.rs of its package, or say in \
                     xtask/src/tidy/limits.rs why no user can reach it",
                    file.path
                )),
            }
        }
    }
    for (allowed, _) in ALLOWED.iter().zip(used).filter(|(_, used)| !used) {
        findings.errors.push(format!(
            "xtask/src/tidy/limits.rs allows {} {:?} ({}), which is not there",
            allowed.path, allowed.names, allowed.reason
        ));
    }
}

/// True for a file that ships: neither a test nor a tool of developers.
fn is_product(path: &str) -> bool {
    let is_tool = ["xtask/", "e2e/"].iter().any(|tool| path.starts_with(tool));
    let is_test = path.contains("/tests/") || path.contains("tests.") || path.contains("/test_");
    let is_code = path.ends_with(".rs") || path.ends_with(".py");
    is_code && !is_tool && !is_test && !has_rows(path)
}

/// Names of the constants of a file, up to its tests, that stand for a bound.
fn bounds(file: &File) -> impl Iterator<Item = &str> {
    let product = file.text.split("#[cfg(test)]").next().unwrap_or_default();
    let is_python = file.path.ends_with(".py");
    product.lines().filter_map(move |line| {
        let name = if is_python {
            line.split([':', ' ', '=']).next()?
        } else {
            line.split_once("const ")?.1.split(':').next()?
        };
        let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_bound = BEGINNINGS.iter().any(|start| name.starts_with(start))
            || ENDS.iter().any(|end| name.ends_with(end));
        (is_bound && name.bytes().all(is_name)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::{File, bounds, is_product};

    #[test]
    fn a_bound_outside_limits_is_found_in_code_that_ships() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let rust = "    pub(super) const MOST_DUCKS: usize = 1;\nconst POND: u8 = 2;\nconst POND_BYTES: u8 = 3;\n\
            #[cfg(test)]\nconst PATIENCE: u8 = 4;\n";
        let rust = file("link/src/pond.rs", rust);
        assert_eq!(
            bounds(&rust).collect::<Vec<_>>(),
            ["MOST_DUCKS", "POND_BYTES"]
        );
        let python = file(
            "python/fireflyer/pond.py",
            "QUEUE_LIMIT: Final = 3\nqueue_limit = 4\n",
        );
        assert_eq!(bounds(&python).collect::<Vec<_>>(), ["QUEUE_LIMIT"]);
        assert!(is_product("link/src/pond.rs"));
        for other in [
            "link/tests/pond.rs",
            "xtask/src/pond.rs",
            "link/src/limits.rs",
            "link/src/pond_tests.rs",
        ] {
            assert!(!is_product(other), "{other}");
        }
    }
}
