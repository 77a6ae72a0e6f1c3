//! Every operation, type and reduction over real sidecars and clients, against results computed here.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use gang::rdma::Fake;
use gang::{Gang, PATIENCE, encode, f32s, failure, filled, run, to_f32s};
use hfreduce_client::{Call, DType, Factor, OpKind, ReduceOp};
use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::Preference;

#[test]
fn two_nodes_sum() {
    let gang = Gang::start(2, 2);
    let results = gang.each(|client| {
        let rank = client.standing().rank as f32;
        let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 3);
        let output = run(&client, call, &f32s(&[rank, 1.0, -rank])).unwrap();
        to_f32s(&output.result)
    });
    for result in results {
        assert_eq!(result, [6.0, 4.0, -6.0]);
    }
}

/// Sizes around nothing, a cache line, a chunk, and several chunks in both trees.
const COUNTS: [u64; 5] = [0, 1, 17, 2048, 9001];
/// Small, so that a few thousand elements are many chunks.
const CHUNK_BYTES: u32 = 4096;

/// Small enough for sums of all ranks to be exact in every type but those of 8 bits, which have 0 to 2 of it.
fn value(dtype: DType, rank: u32, at: u64) -> i64 {
    let spread = match dtype {
        DType::E4m3 | DType::E5m2 => 2,
        DType::F64
        | DType::F32
        | DType::F16
        | DType::Bf16
        | DType::U8
        | DType::I8
        | DType::I32
        | DType::I64 => 7,
    };
    ((u64::from(rank) * 5 + at * 3) % spread) as i64
}

/// A sum with a factor that is exact in every type.
const PREMUL_SUM: ReduceOp = ReduceOp::PremulSum(Factor::new(0.5));

/// What a rank brings to a reduction. To an average, a multiple of the number of ranks: its sum fits every type and
/// its mean is exact; likewise what is multiplied. Rounding is the kernels' own business: their tests compare bits.
fn brought(dtype: DType, op: ReduceOp, world: u32, rank: u32, at: u64) -> i64 {
    let value = value(dtype, rank, at);
    match op {
        ReduceOp::Avg => value * i64::from(world),
        ReduceOp::PremulSum(_) => value * 2,
        ReduceOp::Sum
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => value,
    }
}

fn expected(dtype: DType, op: ReduceOp, world: u32, at: u64) -> i64 {
    let values = (0..world).map(|rank| brought(dtype, op, world, rank, at));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::PremulSum(_) => values.sum::<i64>() / 2,
        ReduceOp::Avg => values.sum::<i64>() / i64::from(world),
        ReduceOp::Max => values.max().unwrap(),
        ReduceOp::Min => values.min().unwrap(),
        ReduceOp::And => values.reduce(|a, b| a & b).unwrap(),
        ReduceOp::Or => values.reduce(|a, b| a | b).unwrap(),
        ReduceOp::Xor => values.reduce(|a, b| a ^ b).unwrap(),
    }
}

/// The reductions that there are for a type.
fn reductions(dtype: DType) -> impl Iterator<Item = ReduceOp> {
    let only: &[ReduceOp] = if dtype.is_float() {
        &[PREMUL_SUM]
    } else {
        &[ReduceOp::And, ReduceOp::Or, ReduceOp::Xor]
    };
    let all = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min];
    all.into_iter().chain(only.iter().copied())
}

#[test]
fn every_operation_and_type_gives_every_rank_the_same_right_bits() {
    let fake = Fake::new();
    let tcp = [(1, 1), (1, 3), (2, 1), (3, 2), (5, 1)].map(|size| (size, Preference::Tcp));
    let verbs = [((3, 2), Preference::Verbs)];
    for ((nodes, procs), transport) in tcp.into_iter().chain(verbs) {
        let gang = Gang::with(nodes, procs, |options| MemberOptions {
            chunk_bytes: CHUNK_BYTES,
            transport,
            ..fake.options(options)
        });
        let world = gang.world();
        gang.each(|client| {
            let standing = client.standing();
            let mine =
                |dtype, count| encode(dtype, (0..count).map(|at| value(dtype, standing.rank, at)));
            for (at, dtype) in DType::ALL.iter().copied().enumerate() {
                for count in COUNTS {
                    for op in reductions(dtype) {
                        let part = |at| brought(dtype, op, world, standing.rank, at);
                        let part = encode(dtype, (0..count).map(part));
                        let all =
                            encode(dtype, (0..count).map(|at| expected(dtype, op, world, at)));
                        let call = Call::all_reduce(dtype, op, count);
                        let output = run(&client, call, &part).unwrap();
                        assert!(output.result[..] == all, "{call} on {standing:?}");
                        let root = (at as u32 + 1) % world;
                        let call = Call::new(OpKind::Reduce { op, root }, dtype, count);
                        let output = run(&client, call, &part).unwrap();
                        let is_root = root == standing.rank;
                        let all = if is_root { all } else { Vec::new() };
                        assert!(output.result[..] == all, "{call} on {standing:?}");
                    }
                    let root = at as u32 % world;
                    let call = Call::new(OpKind::Broadcast { root }, dtype, count);
                    let output = run(&client, call, &mine(dtype, count)).unwrap();
                    let theirs = encode(dtype, (0..count).map(|at| value(dtype, root, at)));
                    assert!(output.result[..] == theirs, "{call} on {standing:?}");
                    let call = Call::new(OpKind::AllGather, dtype, count);
                    let output = run(&client, call, &mine(dtype, count)).unwrap();
                    let ranks = (0..world)
                        .flat_map(|rank| (0..count).map(move |at| value(dtype, rank, at)));
                    assert!(
                        output.result[..] == encode(dtype, ranks),
                        "{call} on {standing:?}"
                    );
                }
            }
            run(&client, Call::barrier(), &[]).unwrap();
        });
    }
}

#[test]
fn integers_with_a_factor_are_an_error_that_says_so_on_every_rank_and_the_group_goes_on() {
    let gang = Gang::start(2, 2);
    gang.each(|client| {
        let call = Call::all_reduce(DType::I32, PREMUL_SUM, 1);
        let (_, text) = failure(run(&client, call, &[0; 4]));
        assert!(text.contains("its factor multiplies floats only"), "{text}");
        let call = Call::all_reduce(DType::F32, PREMUL_SUM, 1);
        let output = run(&client, call, &f32s(&[3.0])).unwrap();
        assert_eq!(to_f32s(&output.result), [6.0]);
    });
}

#[test]
fn bits_of_floats_are_an_error_that_says_so_on_every_rank_and_the_group_goes_on() {
    let gang = Gang::start(2, 2);
    gang.each(|client| {
        let call = Call::all_reduce(DType::F64, ReduceOp::Xor, 1);
        let (_, text) = failure(run(&client, call, &[0; 8]));
        assert!(
            text.contains("combines the bits of integers only"),
            "{text}"
        );
        let call = Call::all_reduce(DType::I8, ReduceOp::Xor, 1);
        let output = run(&client, call, &[1 << client.standing().rank]).unwrap();
        assert_eq!(output.result[..], [0b1111]);
    });
}

#[test]
fn averages_divide_by_all_ranks() {
    let gang = Gang::start(2, 2);
    let results = gang.each(|client| {
        let call = Call::all_reduce(DType::F32, ReduceOp::Avg, 2);
        let mine = f32s(&[client.standing().rank as f32, 2.0]);
        to_f32s(&run(&client, call, &mine).unwrap().result)
    });
    assert!(results.iter().all(|result| result[..] == [1.5, 2.0]));
}

#[test]
fn operations_back_to_back_from_one_rank_do_not_wait_for_each_other() {
    let gang = Gang::start(2, 2);
    gang.each(|client| {
        let rank = client.standing().rank;
        for round in 0..20u32 {
            let tickets: Vec<_> = (0..24u32)
                .map(|at| {
                    let count = 1 + (at as usize * 7919) % 50_000;
                    let mine = vec![(rank + at + round) as f32; count];
                    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, count as u64);
                    let input = filled(&client, &f32s(&mine));
                    (
                        at,
                        count,
                        client.submit(call, Some(input), PATIENCE).unwrap(),
                    )
                })
                .collect();
            // Waited for in another order than called.
            for (at, count, ticket) in tickets.into_iter().rev() {
                let output = client.wait(ticket, PATIENCE).unwrap();
                let sum = (6 + 4 * (at + round)) as f32;
                assert_eq!(to_f32s(&output.result), vec![sum; count]);
            }
        }
    });
}

#[test]
fn the_paper_s_gradient_size_passes() {
    let gang = Gang::start(2, 1);
    let count = 46 * 1024 * 1024;
    gang.each(|client| {
        let mut input = client.buffer(count * 4, PATIENCE).unwrap();
        let rank = client.standing().rank + 1;
        for (at, word) in input.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&((at % 1000) as f32 * rank as f32).to_le_bytes());
        }
        let call = Call::all_reduce(DType::F32, ReduceOp::Sum, count as u64);
        let ticket = client.submit(call, Some(input), PATIENCE).unwrap();
        let output = client.wait(ticket, PATIENCE).unwrap();
        let right = |(at, word): (usize, &[u8])| word == ((at % 1000) as f32 * 3.0).to_le_bytes();
        assert!(output.result.chunks_exact(4).enumerate().all(right));
    });
}
