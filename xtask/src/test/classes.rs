//! Which tests run when, and how long the stages may take: one table. A unit is what `ledger` records: a test
//! program, a scenario, a test of the guest. How a run chooses is in `plan`; `tidy` holds the table to the recorded times.

use When::{Always, On};

/// When a unit runs. `cargo xtask test --all` runs each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// In every run: each invariant at its cheapest tier, and one canary of each capability and tier.
    Always,
    /// When a file whose path begins with one of these has changed; otherwise in its turn.
    On(&'static [&'static str]),
}

/// A stage and the limits on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    /// What must always run may take this long.
    pub(crate) budget: u32,
    /// A unit that nothing affects runs once in so many commits; 0 when all of the stage always runs.
    pub(crate) turns: usize,
    /// A change of a file whose path begins with one of these affects all units.
    pub(crate) all: &'static [&'static str],
}

/// A change of these affects every unit of every stage.
pub(crate) const EVERYTHING: &[&str] = &[
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "rust-toolchain.toml",
    "xtask/src/test",
];

/// The stages, in seconds: 55 minutes in all.
pub(crate) const STAGES: &[Stage] = &[
    whole("packages", 30),
    whole("tidy", 30),
    whole("gen", 30),
    whole("lint", 200),
    parts("unit", 750, 3, &[]),
    parts("rdma", 120, 4, RDMA),
    whole("tools", 400),
    whole("etcd", 120),
    whole("base", 180),
    whole("chart", 30),
    whole("smoke", 90),
    whole("csi", 120),
    whole("images", 300),
    whole("python", 240),
    parts("cluster", 660, 4, CLUSTER),
];

const fn whole(name: &'static str, budget: u32) -> Stage {
    parts(name, budget, 0, &[])
}

const fn parts(
    name: &'static str,
    budget: u32,
    turns: usize,
    all: &'static [&'static str],
) -> Stage {
    Stage {
        name,
        budget,
        turns,
        all,
    }
}

/// What only devices show: verbs, and who chooses them.
const RDMA: &[&str] = &[
    "hfreduce-sidecar/src/negotiate.rs",
    "hfreduce-sidecar/tests/gang",
    "hfreduce-sidecar/tests/soft_roce.rs",
    "link/src/connect",
    "link/src/transport",
    "link/src/verbs",
    "link/tests/rdma",
    "xtask/src/rdma",
];

const CLUSTER: &[&str] = &[
    "e2e/cluster",
    "e2e/fixtures",
    "e2e/scenarios/Cargo.toml",
    "e2e/scenarios/src/context.rs",
    "e2e/scenarios/src/jobs.rs",
    "e2e/scenarios/src/main.rs",
    "e2e/scenarios/src/runner.rs",
    "e2e/tools",
    "xtask/src/images",
];

/// Stage, how the unit's name begins, when. The longest beginning counts. Of a test program without a row, and beside its
/// row's paths, its package and the packages below that are what affects it.
pub(crate) const UNITS: &[(&str, &str, When)] = &[
    // The core's units and simulations hold most invariants, in seconds.
    ("unit", "chain_placement ", Always),
    ("unit", "chain_table ", Always),
    ("unit", "chunk_store ", Always),
    ("unit", "topology ", Always),
    ("unit", "scheduler ", Always),
    ("unit", "collective ", Always),
    ("unit", "craq ", Always),
    ("unit", "health ", Always),
    ("unit", "metadata ", Always),
    ("unit", "sim ", Always),
    ("unit", "collective tests/instruction_sets.rs", On(&[])),
    ("unit", "operator src/lib.rs", Always),
    ("unit", "contract src/lib.rs", Always),
    ("unit", "link src/lib.rs", Always),
    ("unit", "hfreduce_client src/lib.rs", Always),
    ("unit", "crds ", Always),
    ("unit", "kv ", Always),
    ("unit", "manager ", Always),
    ("unit", "storage_rpc ", Always),
    // One canary of what the sidecar does with processes, and of what others do.
    ("unit", "hfreduce_sidecar src/lib.rs", Always),
    ("unit", "hfreduce_sidecar tests/collectives.rs", Always),
    ("unit", "hfreduce_sidecar tests/groups.rs", Always),
    ("unit", "hfreduce_sidecar tests/namespaces/main.rs", Always),
    ("unit", "hfreduce_sidecar tests/rendezvous.rs", Always),
    ("unit", "hfreduce_sidecar tests/shrink.rs", Always),
    ("unit", "hfreduce_sidecar tests/verbs.rs", Always),
    ("unit", "launcher ", Always),
    ("unit", "device_plugin ", On(&["e2e/fixtures"])),
    ("unit", "device_plugin tests/kubelet.rs", Always),
    ("unit", "csi tests/kubelet.rs", Always),
    ("unit", "csi tests/node/main.rs", On(&["e2e/tools"])),
    ("unit", "xtask ", On(&["core", "docs"])),
    ("rdma", "links_carry_payload_both_ways", Always),
    ("rdma", "a_sidecar_that_is_killed_is_named", Always),
    ("rdma", "", On(&[])),
    ("cluster", "training::", On(TRAINING)),
    ("cluster", "training::digits_reach_accuracy", Always),
    ("cluster", "lifecycle::", On(JOBS)),
    ("cluster", "lifecycle::suspended_job_saves", Always),
    ("cluster", "lifecycle::gang_that_cannot_fit", Always),
    ("cluster", "faults::", On(JOBS)),
    ("cluster", "faults::dead_rank_restarts", Always),
    ("cluster", "faults::killed_node_is_replaced", Always),
    ("cluster", "forged::", On(API)),
    ("cluster", "forged::nobody_else_decides", Always),
    ("cluster", "devices::", On(DEVICES)),
    ("cluster", "devices::trainer_sees_the_devices", Always),
    ("cluster", "api::", On(API)),
    ("cluster", "api::every_refusal", Always),
    ("cluster", "survival::", On(JOBS)),
    ("cluster", "shrink::", On(SHRINK)),
    ("cluster", "storage::", On(STORAGE)),
    ("cluster", "volumes::", On(VOLUMES)),
    ("cluster", "volumes::claim_is_bound", Always),
    // Each has the cluster to itself, so that it runs where what it shows may have changed.
    ("cluster", "volumes::costs::", On(CSI)),
    ("cluster", "volumes::faults::full_disks", On(DISKS)),
    ("cluster", "volumes::faults::lost_storage_node", On(CHAINS)),
    ("cluster", "volumes::faults::of_two_drained", On(PODS)),
    ("cluster", "volumes::faults::volumes_do_not_need", On(PODS)),
    ("cluster", "shrink::of_a_partition", Always),
    ("cluster", "memory::", On(MEMORY)),
    ("cluster", "upgrade::", On(API)),
    ("cluster", "upgrade::chart_upgrade", Always),
    ("cluster", "validation::", On(VALIDATION)),
    ("cluster", "validation::node_that_lost_a_gpu", Always),
    ("cluster", "scale::", On(JOBS)),
    ("cluster", "scale::hundred_jobs", Always),
];

const TRAINING: &[&str] = &[
    "contract/src",
    "core/collective/src",
    "e2e/scenarios/src/scenario/training.rs",
    "examples",
    "hfreduce-client/src",
    "hfreduce-sidecar/src",
    "launcher/src",
    "python/fireflyer",
    "python/src",
    "link/src",
];

const JOBS: &[&str] = &[
    "contract/src",
    "core/scheduler/src",
    "crds/src",
    "daemon/src",
    "e2e/scenarios/src/member.rs",
    "e2e/scenarios/src/scenario",
    "launcher/src",
    "operator/src",
];

const API: &[&str] = &[
    "crds",
    "e2e/scenarios/src/crash.rs",
    "e2e/scenarios/src/scenario",
    "helm/fireflyer",
    "operator/src/training_job",
];

const MEMORY: &[&str] = &[
    "crds/src/template.rs",
    "e2e/scenarios/src/scenario/memory.rs",
    "operator/src/mirror.rs",
    "operator/src/training_job/job_view.rs",
    "operator/src/views",
    "operator/src/watch",
];

const DEVICES: &[&str] = &[
    "core/topology/src",
    "device-plugin/src",
    "e2e/scenarios/src/scenario/devices.rs",
    "operator/src/training_job/pod",
];

const SHRINK: &[&str] = &[
    "core/collective/src/machine",
    "core/collective/src/membership",
    "core/scheduler/src/shrink.rs",
    "e2e/scenarios/src/scenario/shrink.rs",
    "hfreduce-sidecar/src",
    "operator/src/rendezvous",
];

const STORAGE: &[&str] = &[
    "e2e/scenarios/src/pods.rs",
    "e2e/scenarios/src/scenario/storage.rs",
    "storage-csi/fuse/examples",
    "storage-csi/fuse/src",
];

const VOLUMES: &[&str] = &[
    "core/chain-placement/src",
    "core/chain-table/src",
    "core/chunk-store/src",
    "core/craq/src",
    "core/metadata/src",
    "e2e/scenarios/src/pods.rs",
    "e2e/scenarios/src/scenario/volumes",
    "e2e/scenarios/src/scenario/volumes.rs",
    "helm/fireflyer/templates/storage",
    "operator/src/storage",
    "storage-csi",
];

const FAULTS: &str = "e2e/scenarios/src/scenario/volumes/faults.rs";

const CSI: &[&str] = &[
    "e2e/scenarios/src/scenario/volumes/costs.rs",
    "helm/fireflyer/templates/storage",
    "storage-csi/csi/src",
];

const DISKS: &[&str] = &[
    FAULTS,
    "core/chunk-store/src",
    "storage-csi/meta/src",
    "storage-csi/storage/src",
];

const CHAINS: &[&str] = &[
    FAULTS,
    "core/chain-table/src",
    "core/craq/src",
    "storage-csi/client/src",
    "storage-csi/manager/src",
    "storage-csi/storage/src/engine",
];

const PODS: &[&str] = &[
    FAULTS,
    "helm/fireflyer/templates/storage",
    "operator/src/storage",
    "storage-csi/src",
];

const VALIDATION: &[&str] = &[
    "contract/src/validation.rs",
    "core/health/src",
    "core/scheduler/src",
    "crds/src",
    "device-plugin/src",
    "e2e/scenarios/src/scenario/validation.rs",
    "helm/fireflyer",
    "operator/src",
    "validator/src",
];

/// The row of a unit.
pub(crate) fn when(stage: &str, unit: &str) -> Option<When> {
    UNITS
        .iter()
        .filter(|(of, beginning, _)| *of == stage && unit.starts_with(beginning))
        .max_by_key(|(_, beginning, _)| beginning.len())
        .map(|(_, _, when)| *when)
}

/// The limits on a stage.
pub(crate) fn stage(name: &str) -> Option<&'static Stage> {
    STAGES.iter().find(|stage| stage.name == name)
}

#[cfg(test)]
mod tests {
    use super::{STAGES, When, when};

    #[test]
    fn the_longest_beginning_counts() {
        assert_eq!(when("unit", "collective src/lib.rs"), Some(When::Always));
        let rotating = when("unit", "collective tests/instruction_sets.rs");
        assert_eq!(rotating, Some(When::On(&[])));
        assert_eq!(when("unit", "cluster tests/lifecycle.rs"), None);
        assert_eq!(when("smoke", "collective src/lib.rs"), None);
    }

    #[test]
    fn all_budgets_together_are_at_most_55_minutes() {
        let sum: u32 = STAGES.iter().map(|stage| stage.budget).sum();
        assert!(sum <= 55 * 60, "{sum} s");
    }
}
