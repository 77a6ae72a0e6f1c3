//! What is measured: shapes of a gang, loads, types, and who takes part. The bars of `bars` are about some of these
//! cases; a full run measures all.

use std::fmt;

/// Nodes, and processes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    pub(crate) procs: usize,
}

impl Shape {
    pub(crate) const fn world(self) -> usize {
        self.nodes * self.procs
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.nodes, self.procs)
    }
}

/// Tensors that are called at once, and bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Load {
    pub(crate) tensors: usize,
    pub(crate) bytes: u64,
}

impl Load {
    pub(crate) const fn total(self) -> u64 {
        self.tensors as u64 * self.bytes
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tensors > 1 {
            write!(f, "{} x ", self.tensors)?;
        }
        match self.bytes {
            small if small < 1 << 20 => write!(f, "{} KiB", small >> 10),
            large => write!(f, "{} MiB", large >> 20),
        }
    }
}

/// Type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DType {
    F32,
    F16,
    Bf16,
}

impl DType {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// How data moves between the nodes of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// With a checksum of each payload: what sidecars do by themselves between machines.
    Tcp,
    /// Without, as the rivals.
    TcpUnchecked,
    /// As the first, in a job that goes on after losses: results are handed over when they can no longer be lost.
    TcpStable,
}

/// How ranks of an MPI library reach each other: as nodes of their own, or in one node's shared memory, which is
/// their best case and has no network in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    Tcp,
    Shm,
}

/// How the gradients of a training step come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exchange {
    /// Not at all: every rank trains a model of its own.
    Alone,
    /// DistributedDataParallel over Gloo.
    Gloo,
    /// The same over our backend: the program differs in one word.
    Backend,
    /// The same with our communication hook.
    Hook,
    /// Our arena in its place.
    Arena,
}

impl Exchange {
    /// The program's parameters.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Gloo => "gloo",
            Self::Backend => "hfreduce",
            Self::Hook => "hook",
            Self::Arena => "arena",
        }
    }

    pub(crate) const fn is_ours(self) -> bool {
        match self {
            Self::Alone | Self::Gloo => false,
            Self::Backend | Self::Hook | Self::Arena => true,
        }
    }
}

/// Whose processes are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Player {
    Ours(Transport),
    /// Ours on one node, with so many threads that compute.
    Pool(usize),
    Gloo,
    OpenMpi(Path),
    IntelMpi(Path),
    /// A training step, not a call.
    Step(Exchange),
}

impl fmt::Display for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours(Transport::Tcp) => "hfreduce tcp",
            Self::Ours(Transport::TcpUnchecked) => "hfreduce tcp unchecked",
            Self::Ours(Transport::TcpStable) => "hfreduce shrink tcp",
            Self::Pool(threads) => return write!(f, "hfreduce pool of {threads}"),
            Self::Gloo => "gloo tcp",
            Self::OpenMpi(Path::Tcp) => "open mpi tcp",
            Self::OpenMpi(Path::Shm) => "open mpi shm",
            Self::IntelMpi(Path::Tcp) => "intel mpi tcp",
            Self::IntelMpi(Path::Shm) => "intel mpi shm",
            Self::Step(Exchange::Alone) => "ddp alone",
            Self::Step(Exchange::Gloo) => "ddp gloo",
            Self::Step(Exchange::Backend) => "ddp hfreduce",
            Self::Step(Exchange::Hook) => "ddp hfreduce hook",
            Self::Step(Exchange::Arena) => "ddp arena",
        })
    }
}

/// How a player does it; the rivals know the first way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Tensors lie in shared buffers, sums are rounded on every level of the tree.
    Plain,
    /// Private tensors are copied into shared buffers, and results out.
    Copies,
    /// Sums do not depend on how tensors are cut: one tree, in f32.
    Bitwise,
}

impl Way {
    /// What a rank of a bench calls it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Plain => "segment",
            Self::Copies => "copy",
            Self::Bitwise => "bitwise",
        }
    }
}

/// A player, and how it does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contender {
    pub(crate) player: Player,
    pub(crate) way: Way,
}

impl Contender {
    /// Whether it takes training steps.
    pub(crate) const fn is_step(&self) -> bool {
        matches!(self.player, Player::Step(_))
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Plain => "",
            Way::Copies => " + copies",
            Way::Bitwise => " bitwise",
        };
        write!(f, "{}{way}", self.player)
    }
}

const fn ours(transport: Transport, way: Way) -> Contender {
    Contender {
        player: Player::Ours(transport),
        way,
    }
}

const fn rival(player: Player) -> Contender {
    Contender {
        player,
        way: Way::Plain,
    }
}

pub(crate) const fn step(exchange: Exchange) -> Contender {
    rival(Player::Step(exchange))
}

/// The engine by itself, and two threads beside it.
pub(crate) const POOLS: [Contender; 2] = [rival(Player::Pool(1)), rival(Player::Pool(2))];
pub(crate) const GLOO: Contender = rival(Player::Gloo);
pub(crate) const OPEN_MPI_TCP: Contender = rival(Player::OpenMpi(Path::Tcp));
pub(crate) const OPEN_MPI_SHM: Contender = rival(Player::OpenMpi(Path::Shm));
pub(crate) const INTEL_MPI_TCP: Contender = rival(Player::IntelMpi(Path::Tcp));
pub(crate) const INTEL_MPI_SHM: Contender = rival(Player::IntelMpi(Path::Shm));
pub(crate) const TCP: Contender = ours(Transport::Tcp, Way::Plain);
pub(crate) const TCP_UNCHECKED: Contender = ours(Transport::TcpUnchecked, Way::Plain);
pub(crate) const TCP_STABLE: Contender = ours(Transport::TcpStable, Way::Plain);
pub(crate) const TCP_COPIES: Contender = ours(Transport::Tcp, Way::Copies);
pub(crate) const TCP_BITWISE: Contender = ours(Transport::Tcp, Way::Bitwise);

/// One line of the table of results, less who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    pub(crate) load: Load,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.shape, self.load, self.dtype.name())
    }
}

impl Case {
    /// Bytes of memory that a contender needs for the tensors alone, on all nodes together.
    pub(crate) fn memory(&self, contender: Contender) -> u64 {
        let (world, nodes) = (self.shape.world() as u64, self.shape.nodes as u64);
        let tensors = match contender.player {
            Player::Ours(_) if contender.way == Way::Copies => 2 * world + nodes,
            Player::Ours(_) | Player::Pool(_) => world + nodes,
            Player::Gloo => world,
            // They are given a result apart from the input.
            Player::OpenMpi(_) | Player::IntelMpi(_) => 2 * world,
            // Parameters, gradients, buckets, and shared buffers.
            Player::Step(_) => 4 * world + nodes,
        };
        tensors * self.load.total()
    }
}

pub(crate) const fn shape(nodes: usize, procs: usize) -> Shape {
    Shape { nodes, procs }
}

pub(crate) const fn kib(bytes: u64) -> Load {
    Load {
        tensors: 1,
        bytes: bytes << 10,
    }
}

pub(crate) const fn mib(bytes: u64) -> Load {
    kib(bytes << 10)
}

/// The paper's load: 46 layers of 1024 x 1024 in single precision.
pub(crate) const LAYERS: Load = Load {
    tensors: 46,
    bytes: 4 << 20,
};
const LOADS: [Load; 7] = [kib(4), kib(64), mib(1), mib(16), mib(64), mib(186), LAYERS];
const SHAPES: [Shape; 4] = [shape(2, 1), shape(2, 4), shape(2, 8), shape(4, 8)];
const EVERYBODY: [Contender; 9] = [
    TCP,
    TCP_UNCHECKED,
    TCP_COPIES,
    TCP_BITWISE,
    GLOO,
    OPEN_MPI_TCP,
    OPEN_MPI_SHM,
    INTEL_MPI_TCP,
    INTEL_MPI_SHM,
];

/// Who takes part in the step of a model of these layers.
const STEPS: [Contender; 5] = [
    step(Exchange::Alone),
    step(Exchange::Gloo),
    step(Exchange::Backend),
    step(Exchange::Hook),
    step(Exchange::Arena),
];
/// Where it is measured what stable results cost: small ones wait for a round more, large ones for their last chunk.
pub(crate) const STABLE_SHAPE: Shape = shape(2, 1);
pub(crate) const STABLE_LOADS: [Load; 3] = [kib(4), kib(64), mib(186)];
/// Where it is measured what a second thread gains: nothing but sums.
pub(crate) const POOL_CASE: Case = Case {
    shape: shape(1, 8),
    dtype: DType::F32,
    load: mib(64),
};
/// The gang that takes steps.
pub(crate) const STEP_SHAPE: Shape = shape(2, 4);

/// Everything, in order: who takes part in a case is measured one after the other, so close in time.
pub(crate) fn all() -> Vec<(Case, Vec<Contender>)> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for load in LOADS {
                let case = Case { shape, dtype, load };
                let takes_part = |contender: &Contender| match contender.player {
                    Player::Ours(_) | Player::Gloo => true,
                    // MPI knows no 16-bit floats.
                    Player::OpenMpi(_) | Player::IntelMpi(_) => dtype == DType::F32,
                    Player::Step(_) | Player::Pool(_) => false,
                };
                let mut contenders: Vec<_> = EVERYBODY.into_iter().filter(takes_part).collect();
                if (shape, dtype, load) == (STEP_SHAPE, DType::F32, LAYERS) {
                    contenders.extend(STEPS);
                }
                if (shape, dtype) == (STABLE_SHAPE, DType::F32) && STABLE_LOADS.contains(&load) {
                    contenders.push(TCP_STABLE);
                }
                cases.push((case, contenders));
            }
        }
    }
    cases.push((POOL_CASE, POOLS.to_vec()));
    cases
}

/// What the bars are about, and no more.
pub(crate) fn of_bars() -> Vec<(Case, Vec<Contender>)> {
    let case = |shape, load, dtype, contenders: &[Contender]| {
        (Case { shape, dtype, load }, contenders.to_vec())
    };
    let (one, four) = (shape(2, 1), shape(2, 4));
    let f32 = DType::F32;
    vec![
        case(one, kib(4), f32, &[TCP, TCP_COPIES, TCP_STABLE, GLOO]),
        case(one, kib(64), f32, &[TCP, TCP_STABLE, GLOO]),
        case(
            one,
            mib(186),
            f32,
            &[
                TCP,
                TCP_STABLE,
                TCP_UNCHECKED,
                TCP_COPIES,
                TCP_BITWISE,
                GLOO,
                OPEN_MPI_TCP,
                INTEL_MPI_TCP,
            ],
        ),
        case(one, mib(186), DType::F16, &[TCP]),
        case(one, mib(186), DType::Bf16, &[TCP, TCP_BITWISE]),
        case(four, mib(186), f32, &[TCP, TCP_COPIES, TCP_BITWISE, GLOO]),
        case(STEP_SHAPE, LAYERS, f32, &STEPS),
        case(four, mib(186), DType::F16, &[TCP]),
        case(four, mib(186), DType::Bf16, &[TCP, TCP_BITWISE]),
        case(shape(4, 8), kib(4), f32, &[TCP]),
        case(
            shape(4, 8),
            mib(64),
            f32,
            &[TCP, TCP_COPIES, GLOO, OPEN_MPI_SHM, INTEL_MPI_SHM],
        ),
        (POOL_CASE, POOLS.to_vec()),
    ]
}

#[cfg(test)]
mod tests {
    use super::{all, of_bars};

    #[test]
    fn a_full_run_measures_every_case_of_the_bars() {
        let all = all();
        for (case, contenders) in of_bars() {
            let (_, everybody) = all.iter().find(|(other, _)| *other == case).unwrap();
            for contender in contenders {
                assert!(everybody.contains(&contender), "{case}, {contender}");
            }
        }
    }
}
