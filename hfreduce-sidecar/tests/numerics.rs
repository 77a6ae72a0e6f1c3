//! The numerics modes over real sidecars and clients: which bits come out, and that all ranks have to mean the same.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod gang;

use gang::{Gang, PATIENCE, failure, filled, run};
use hfreduce_client::client::{Client, Group};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, Numerics, OpKind, ReduceOp};
use hfreduce_sidecar::member::MemberOptions;

/// Elements of a rank's gradients.
const COUNT: usize = 5000;

/// Finite numbers of both signs and many magnitudes, others on each rank.
fn gradients(dtype: DType, rank: u32) -> Vec<u8> {
    let mut state = u64::from(rank) + 1;
    let mut next = || {
        // Xorshift: any mixture will do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let magnitude = [1.0, 1e-3, 64.0][(state % 3) as usize];
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * magnitude
    };
    let mut element = || match dtype {
        DType::F64 => (f64::from(next()) / 3.0).to_le_bytes().to_vec(),
        DType::F32 => next().to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(next()).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(next()).to_le_bytes().to_vec(),
        DType::E5m2 => vec![half::f16::from_f32(next()).to_le_bytes()[1]],
        DType::E4m3 => vec![(next().to_bits() >> 20) as u8 & 0x8f | 0x30],
        DType::U8 | DType::I8 | DType::I32 | DType::I64 => panic!("{dtype} is no float"),
    };
    (0..COUNT).flat_map(|_| element()).collect()
}

fn call(numerics: Numerics, dtype: DType, reduce: ReduceOp, count: usize) -> Call {
    Call {
        numerics,
        ..Call::all_reduce(dtype, reduce, count as u64)
    }
}

/// Reduces gradients in buckets that end at these elements, each in the next of the groups, all at once.
fn reduce(
    client: &Client,
    groups: &[Group],
    (numerics, dtype): (Numerics, DType),
    ends: &[usize],
) -> Vec<u8> {
    let (size, all) = (dtype.size(), gradients(dtype, client.standing().rank));
    let starts = [0].into_iter().chain(ends.iter().copied());
    let tickets: Vec<_> = starts
        .zip(ends)
        .zip(groups.iter().cycle())
        .map(|((start, &end), group)| {
            let bucket = filled(client, &all[start * size..end * size]);
            let call = call(numerics, dtype, ReduceOp::Avg, end - start);
            client
                .submit_in(*group, call, Some(bucket), PATIENCE)
                .unwrap()
        })
        .collect();
    let result = |ticket| client.wait(ticket, PATIENCE).unwrap().result.to_vec();
    tickets.into_iter().flat_map(result).collect()
}

/// Every way to cut the gradients, on a gang with chunks of this size; all ranks have to get the same.
fn results(chunk_bytes: u32, what: (Numerics, DType)) -> Vec<Vec<u8>> {
    // So many that the two trees add up in different orders.
    let gang = Gang::with(6, 1, |options| MemberOptions {
        chunk_bytes,
        ..options
    });
    let everybody: Vec<u32> = (0..gang.world()).collect();
    let ranks = gang.each(|client| {
        let mut groups = vec![client.world()];
        for number in 1..8 {
            groups.push(client.open(number, &everybody, true, PATIENCE).unwrap());
        }
        let ends: Vec<usize> = (1..=40).map(|bucket| bucket * COUNT / 40).collect();
        let layouts: [&[usize]; 3] = [&[COUNT], &[1, 700, 701, 4999, COUNT], &ends];
        let mut results = Vec::new();
        for layout in layouts {
            for some in [1, 3, 8] {
                results.push(reduce(&client, &groups[..some], what, layout));
            }
        }
        results
    });
    assert!(ranks.iter().all(|one| *one == ranks[0]), "{what:?}");
    ranks.into_iter().next().unwrap()
}

// COLL-1, goal G13, trap T10.
#[test]
fn bitwise_results_are_the_same_for_all_buckets_chunks_and_groups() {
    for dtype in [DType::F64, DType::F32, DType::Bf16, DType::E4m3] {
        let mut all = results(512, (Numerics::Bitwise, dtype));
        all.extend(results(4096, (Numerics::Bitwise, dtype)));
        assert!(all.iter().all(|one| *one == all[0]), "{dtype}");
    }
    let mut fast = results(512, (Numerics::Fast, DType::F32));
    fast.extend(results(4096, (Numerics::Fast, DType::F32)));
    assert!(
        fast.iter().any(|one| *one != fast[0]),
        "else it shows nothing"
    );
}

/// The first rank brings a large number, which swallows each small one alone.
#[test]
fn precise_sums_are_those_of_f32_rounded_once_and_fast_ones_are_not() {
    let gang = Gang::start(4, 2);
    let results = gang.each(|client| {
        let rank = client.standing().rank as usize;
        let bf16 = |value: f32| half::bf16::from_f32(value).to_le_bytes();
        let all = 0..client.standing().world as usize;
        let input: Vec<u8> = all
            .flat_map(|at| bf16(if at == rank { 256.0 } else { 1.0 }))
            .collect();
        Numerics::ALL
            .iter()
            .map(|&numerics| {
                let call = call(numerics, DType::Bf16, ReduceOp::Sum, input.len() / 2);
                run(&client, call, &input).unwrap().result.to_vec()
            })
            .collect::<Vec<_>>()
    });
    assert!(results.iter().all(|one| *one == results[0]));
    // 256 + 7 lies between 262 and 264, halfway: the even one is 264.
    let correct = half::bf16::from_f32(263.0).to_le_bytes().repeat(8);
    let [fast, precise, bitwise] = &results[0][..] else {
        panic!("three modes");
    };
    assert_eq!((precise, bitwise), (&correct, &correct));
    assert_ne!(*fast, correct);
}

#[test]
fn ranks_that_round_differently_get_an_error_and_the_next_call_works() {
    let gang = Gang::start(2, 2);
    gang.each(|client| {
        let input = gradients(DType::Bf16, 0);
        let odd = client.standing().rank == 3;
        let numerics = if odd {
            Numerics::Bitwise
        } else {
            Numerics::Precise
        };
        let differs = call(numerics, DType::Bf16, ReduceOp::Sum, COUNT);
        let (kind, text) = failure(run(&client, differs, &input));
        assert_eq!(kind, FailureKind::Mismatch);
        assert!(text.contains("5000 x bf16, precise)"), "{text}");
        assert!(text.contains("5000 x bf16, bitwise)"), "{text}");
        let agreed = call(Numerics::Precise, DType::Bf16, ReduceOp::Sum, COUNT);
        run(&client, agreed, &input).unwrap();
    });
}

#[test]
fn what_is_shared_out_and_what_goes_to_one_have_the_bits_of_what_goes_to_all() {
    let gang = Gang::with(3, 2, |options| MemberOptions {
        chunk_bytes: 512,
        ..options
    });
    gang.each(|client| {
        let count = COUNT / 6 * 6;
        let input = &gradients(DType::F16, client.standing().rank)[..count * 2];
        let all = call(Numerics::Bitwise, DType::F16, ReduceOp::Sum, count);
        let to_all = run(&client, all, input).unwrap().result.to_vec();
        let op = ReduceOp::Sum;
        let kind = OpKind::ReduceScatter { op };
        let shared = run(&client, Call { kind, ..all }, input).unwrap().result;
        let each = to_all.len() / 6;
        let own = client.standing().rank as usize * each;
        assert_eq!(shared[own..own + each], to_all[own..own + each]);
        let kind = OpKind::Reduce { op, root: 4 };
        let one = Call { kind, ..all };
        let to_one = run(&client, one, input).unwrap().result;
        if client.standing().rank == 4 {
            assert_eq!(to_one[..], to_all[..]);
        }
    });
}
