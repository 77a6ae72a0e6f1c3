//! What the modes promise: in precise mode a sum is rounded once, in bitwise mode it does not depend on how it was cut.

use collective::machine::{Handover, Recovery};
use collective::{Call, DType, Factor, Numerics, OpKind, ReduceOp};
use sim::{Rng, for_each_seed};
use topology::OnPeerLoss;

use crate::calls::FLOATS;
use crate::results::{self, all_ok};
use crate::world::{Setup, World};

/// What rank 0 has of all operations, one after another.
fn run(rng: &mut Rng, setup: Setup, calls: &[Call], given: &[Vec<u8>]) -> Vec<u8> {
    let mut world = World::new(rng, setup, calls);
    world.given = given.to_vec();
    world.start();
    world.run(World::all_ended);
    all_ok(&world);
    let outcomes = world.outcomes(0).values();
    outcomes
        .zip(calls)
        .flat_map(|(outcome, call)| {
            outcome.as_ref().unwrap().0[..call.input_bytes() as usize].to_vec()
        })
        .collect()
}

fn call(numerics: Numerics, op: ReduceOp, dtype: DType, count: u64) -> Call {
    Call {
        kind: OpKind::AllReduce { op },
        dtype,
        count,
        tag: 0,
        numerics,
    }
}

/// Finite elements of both signs and all exponents.
fn finite(rng: &mut Rng, dtype: DType, count: u64) -> Vec<u8> {
    let element = |rng: &mut Rng| {
        let bits = rng.next_u64().to_le_bytes();
        match dtype {
            // The highest bit of the exponent is never set together with the others.
            DType::F64 => {
                let [rest @ .., upper] = bits;
                [&rest[..], &[upper & 0xbf]].concat()
            }
            DType::F32 => vec![bits[0], bits[1], bits[2], bits[3] & 0xbf],
            DType::F16 | DType::Bf16 => vec![bits[0], bits[1] & 0xbf],
            DType::E4m3 | DType::E5m2 => vec![bits[0] & 0xbf],
            DType::U8 | DType::I8 | DType::I32 | DType::I64 => unreachable!("{dtype} is no float"),
        }
    };
    (0..count).flat_map(|_| element(rng)).collect()
}

// Goal G13, trap T10.
#[test]
fn in_bitwise_mode_no_bit_depends_on_chunks_or_on_how_tensors_were_cut() {
    const COUNT: u64 = 1800;
    let mut fast_depends = 0;
    for_each_seed(2, |rng| {
        for dtype in FLOATS {
            for op in [
                ReduceOp::Sum,
                ReduceOp::Avg,
                ReduceOp::Max,
                ReduceOp::PremulSum(Factor::new(0.3)),
            ] {
                let nodes = 3 + rng.below(9);
                let setup = Setup::random(rng, nodes);
                let world = setup.layout.world();
                let given: Vec<Vec<u8>> = (0..world).map(|_| finite(rng, dtype, COUNT)).collect();
                let mut results = |numerics| {
                    let cut = rng.range(1..COUNT - 1);
                    let ways: [(u32, &[u64]); 4] = [
                        (512, &[COUNT]),
                        (1024, &[COUNT]),
                        (65_536, &[COUNT]),
                        (576, &[cut, COUNT - 1 - cut, 1]),
                    ];
                    ways.map(|(chunk_bytes, counts)| {
                        let setup = Setup {
                            chunk_bytes,
                            ..setup.clone()
                        };
                        let calls = counts.iter().map(|&count| call(numerics, op, dtype, count));
                        run(rng, setup, &calls.collect::<Vec<_>>(), &given)
                    })
                };
                let bitwise = results(Numerics::Bitwise);
                assert!(bitwise.iter().all(|one| *one == bitwise[0]), "{op} {dtype}");
                let fast = results(Numerics::Fast);
                fast_depends += u32::from(fast.iter().any(|one| *one != fast[0]));
            }
        }
    });
    assert!(fast_depends > 5, "else this shows nothing: {fast_depends}");
}

/// A large number on one rank, another one for each element, and a small one on all others: what each level of a tree
/// rounds away adds up.
// Trap T11, across nodes.
#[test]
fn precise_sums_keep_what_fast_ones_round_away_on_every_level() {
    let bf16 = |value: f32| half::bf16::from_f32(value).to_ne_bytes();
    for_each_seed(1, |rng| {
        // Even numbers: there a leaf that loses a one is not made up for by the last rounding.
        for nodes in [2, 4, 10, 34] {
            let world = 2 * nodes;
            let element = |rank, at| bf16(if rank == at { 256.0 } else { 1.0 });
            let given: Vec<Vec<u8>> = (0..world)
                .map(|rank| (0..world).flat_map(|at| element(rank, at)).collect())
                .collect();
            let mut sum = |numerics| {
                let calls = [call(numerics, ReduceOp::Sum, DType::Bf16, world as u64)];
                run(rng, Setup::uniform(nodes, 2), &calls, &given)
            };
            let correct = bf16(256.0 + (world - 1) as f32).repeat(world);
            assert_eq!(sum(Numerics::Precise), correct, "{nodes} nodes");
            assert_eq!(sum(Numerics::Bitwise), correct, "{nodes} nodes");
            assert_ne!(sum(Numerics::Fast), correct, "{nodes} nodes: fast is off");
        }
    });
}

/// An average of what is near the largest number of 8 or 16 bits; its sum fits into f32.
#[test]
fn an_average_is_divided_once_at_the_root_and_never_overflows_narrow_types() {
    for_each_seed(1, |rng| {
        let e4m3 = |nodes: usize| vec![vec![0x7e]; nodes];
        for numerics in Numerics::ALL {
            let calls = [call(numerics, ReduceOp::Avg, DType::E4m3, 1)];
            let average = run(rng, Setup::uniform(4, 1), &calls, &e4m3(4));
            assert_eq!(average, [0x7e]);
        }
        // In e4m3 a third of 2^-9 is nothing on each of three nodes; their sum in f32 is 2^-9.
        let calls = [call(Numerics::Precise, ReduceOp::Avg, DType::E4m3, 1)];
        let average = run(rng, Setup::uniform(3, 1), &calls, &vec![vec![1]; 3]);
        assert_eq!(average, [1]);
    });
}

#[test]
fn results_that_are_kept_for_others_are_cut_alike_in_every_mode() {
    for_each_seed(3, |rng| {
        for nodes in 2..=6 {
            for numerics in Numerics::ALL {
                let mut setup = Setup::random(rng, nodes);
                setup.recovery = Recovery {
                    handover: Handover::Stable,
                    on_peer_loss: OnPeerLoss::Shrink,
                    replicated: true,
                };
                let world = u64::from(setup.layout.world());
                let kinds = [
                    OpKind::ReduceScatter { op: ReduceOp::Sum },
                    OpKind::Reduce {
                        op: ReduceOp::Avg,
                        root: 1,
                    },
                ];
                let calls = kinds.map(|kind| Call {
                    kind,
                    ..call(numerics, ReduceOp::Sum, DType::Bf16, 300 * world)
                });
                results::run(rng, setup, &calls);
            }
        }
    });
}
