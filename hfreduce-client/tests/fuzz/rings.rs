//! The rings between a process and its sidecar: either side may write anything into them at any time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hfreduce_client::entry::{
    CallOutcome, Completion, FailureKind, SegmentRange, Submission, TEXT_LIMIT_BYTES,
};
use hfreduce_client::{Call, DType, Numerics, OpKind, ReduceOp};
use link::ring::{
    self, CAPACITY, COMPLETION_CAPACITY, COMPLETION_WORDS, Consumer, Producer, SUBMISSION_WORDS,
    WaitOn, WakeFor,
};
use link::segment::Segment;
use sim::{Rng, damage, explore};

/// Any call.
fn call(rng: &mut Rng) -> Call {
    let (op, root) = (*rng.pick(&ReduceOp::ALL), rng.next_u64() as u32 >> 1);
    let kind = *rng.pick(&[
        OpKind::AllReduce { op },
        OpKind::Reduce { op, root },
        OpKind::Broadcast { root },
        OpKind::AllGather,
        OpKind::Barrier,
        OpKind::Close,
        OpKind::ReduceScatter { op },
        OpKind::Gather { root },
        OpKind::Scatter { root },
        OpKind::AllToAll { with: None },
        OpKind::AllToAll { with: Some(root) },
        OpKind::Send { to: root },
        OpKind::Receive { from: root },
    ]);
    let mut call = Call::new(kind, *rng.pick(&DType::ALL), damage::number(rng));
    call.tag = damage::number(rng);
    if call.reduce_op().is_some() {
        call.numerics = *rng.pick(&Numerics::ALL);
    }
    call
}

/// Any way to sleep.
fn sleep(rng: &mut Rng) -> (WaitOn, WakeFor) {
    (
        *rng.pick(&[WaitOn::WakeFd, WaitOn::Futex]),
        *rng.pick(&[WakeFor::Anything, WakeFor::Urgent]),
    )
}

fn submission(rng: &mut Rng) -> [u64; SUBMISSION_WORDS] {
    let ticket = damage::number(rng);
    let submission = if rng.chance(2, 3) {
        let input = SegmentRange {
            segment: rng.next_u64() as u32,
            offset: damage::number(rng),
        };
        let call = call(rng);
        Submission::Call {
            group: damage::number(rng),
            ticket,
            call,
            input,
        }
    } else {
        Submission::Release { ticket }
    };
    assert_eq!(Submission::decode(&submission.encode()), Ok(submission));
    submission.encode()
}

fn completion(rng: &mut Rng) -> [u64; COMPLETION_WORDS] {
    let outcome = if rng.chance(1, 2) {
        CallOutcome::Done {
            segment: rng.next_u64() as u32,
            bytes: damage::number(rng),
            epoch: damage::number(rng),
        }
    } else {
        CallOutcome::Failed {
            kind: *rng.pick(&[
                FailureKind::Mismatch,
                FailureKind::Broken,
                FailureKind::Refused,
            ]),
            text: "é".repeat(rng.below(TEXT_LIMIT_BYTES)),
        }
    };
    let ticket = damage::number(rng);
    Completion { ticket, outcome }.encode()
}

fn damage_words(rng: &mut Rng, words: &mut [u64]) {
    for _ in 0..rng.below(4) {
        let at = rng.below(words.len());
        words[at] = damage::number(rng);
    }
}

/// What a side does with the end that it reads. `decode` looks at an entry.
fn read<const WORDS: usize>(
    rng: &mut Rng,
    end: &mut Consumer<WORDS>,
    decode: impl Fn(&[u64; WORDS]),
) {
    for _ in 0..rng.below(2 * CAPACITY) {
        match end.pop() {
            Ok(Some(entry)) => decode(&entry),
            Ok(None) | Err(_) => break,
        }
    }
    let (how, depth) = sleep(rng);
    if end.sleep(how, depth).is_ok() {
        end.awake();
    }
}

/// What a side does with the end that it writes.
fn write<const WORDS: usize>(
    rng: &mut Rng,
    (end, capacity): (&mut Producer<WORDS>, usize),
    entry: impl Fn(&mut Rng) -> [u64; WORDS],
) {
    for _ in 0..rng.below(CAPACITY) {
        let entry = entry(rng);
        let pushed = match rng.below(2) {
            0 => end.push(&entry),
            _ => end.push_not_urgent(&entry),
        };
        if pushed.is_err() {
            break;
        }
    }
    if let Ok(room) = end.room() {
        assert!(room <= capacity);
    }
}

/// The other side writes anything anywhere, mostly near the indices.
fn scribble(rng: &mut Rng, control: &Segment) {
    let words = control.words();
    for _ in 0..rng.below(6) {
        let near_indices = words.len().min(*rng.pick(&[32, 32, words.len()]));
        words[rng.below(near_indices)].store(damage::number(rng), Ordering::SeqCst);
    }
}

#[test]
fn rings() {
    explore(400, &[], |rng| {
        let control = Arc::new(ring::control().unwrap());
        let (mut calls, mut outcomes) = ring::server_ends(&control);
        let (mut submits, mut receives) = ring::client_ends(&control).unwrap();
        for _ in 0..4 {
            let damaged = |rng: &mut Rng| {
                let mut entry = submission(rng);
                damage_words(rng, &mut entry);
                entry
            };
            write(rng, (&mut submits, CAPACITY), damaged);
            if rng.chance(1, 2) {
                scribble(rng, &control);
            }
            read(rng, &mut calls, |entry| {
                if let Ok(submission) = Submission::decode(entry) {
                    assert_eq!(Submission::decode(&submission.encode()), Ok(submission));
                }
            });
            let damaged = |rng: &mut Rng| {
                let mut entry = completion(rng);
                damage_words(rng, &mut entry);
                entry
            };
            write(rng, (&mut outcomes, COMPLETION_CAPACITY), damaged);
            if rng.chance(1, 2) {
                scribble(rng, &control);
            }
            read(rng, &mut receives, |entry| {
                // A text that was damaged is shown with marks, which take more room than what they stand for.
                if let Ok(Completion {
                    outcome: CallOutcome::Failed { text, .. },
                    ..
                }) = Completion::decode(entry)
                {
                    assert!(text.chars().count() <= TEXT_LIMIT_BYTES);
                }
            });
        }
    });
}
