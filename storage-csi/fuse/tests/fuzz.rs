//! Requests that are not as the protocol says: each is understood whole or refused with its number.
//! `cargo xtask fuzz requests --minutes M` goes on for longer.

use fuse::request::{FileOperation, Refusal, Request};
use sim::{Rng, damage, explore};

#[path = "requests/mod.rs"]
mod requests;

use requests::{request, samples};

const UNIQUE: u64 = 0x8000_0000_0000_1234;

fn sample(rng: &mut Rng) -> Vec<u8> {
    let samples = samples();
    let sample = rng.pick(&samples);
    request(sample.opcode, UNIQUE, rng.next_u64(), &sample.body)
}

/// All that a handler could look at lies within the request.
fn check(bytes: &[u8], request: &Request<'_>) {
    let within = |part: &[u8]| {
        let part = part.as_ptr_range();
        let whole = bytes.as_ptr_range();
        assert!(whole.start <= part.start && part.end <= whole.end);
    };
    let operation = request.operation;
    if let FileOperation::Write { data: part, .. } | FileOperation::SetXattr { value: part, .. } =
        operation
    {
        within(part);
    } else if let FileOperation::Lookup { name } = operation {
        within(name.as_bytes());
        assert!(!name.as_bytes().contains(&b'/') && !name.as_bytes().contains(&0));
    } else if let FileOperation::BatchForget(forgets) = operation {
        assert_eq!(forgets.iter().count(), forgets.len());
    }
}

#[test]
fn requests() {
    let (mut understood, mut refused) = (0, 0);
    explore(4_000, &[], |rng| {
        let mut bytes = sample(rng);
        let other = sample(rng);
        damage::anyhow(rng, &mut bytes, &other);
        // Else few get past the length, which is checked first.
        if rng.chance(3, 4) && bytes.len() >= 4 {
            let length = (bytes.len() as u32).to_ne_bytes();
            bytes[..4].copy_from_slice(&length);
        }
        match Request::parse(&bytes) {
            Ok(request) => {
                check(&bytes, &request);
                understood += 1;
            }
            Err(refusal) => {
                let Refusal { unique, reason, .. } = refusal;
                let number = bytes.get(8..16).filter(|_| bytes.len() >= 40);
                let number =
                    number.map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
                assert_eq!(unique.raw(), number, "{refusal}");
                let is_answered = unique.raw() != 0 || !refusal.wants_answer();
                assert!(
                    is_answered && reason.errno().raw_os_error() > 0,
                    "{refusal}"
                );
                refused += 1;
            }
        }
    });
    if !sim::is_replay() {
        assert!(
            understood > 100 && refused > 100,
            "{understood} and {refused}"
        );
    }
}
