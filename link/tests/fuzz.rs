//! The three messages of the handshake: whoever changes one of them, or repeats those of another time, is not let in.
//! `cargo xtask fuzz handshakes --minutes M` goes on for longer.

use link::handshake::{
    CHALLENGE_BYTES, HELLO_BYTES, Initiator, KEY_BYTES, Key, NONCE_BYTES, PROOF_BYTES, Responder,
};
use sim::{Rng, damage, explore};

#[path = "toy/mod.rs"]
#[expect(dead_code, reason = "the fuzzer sends no frames")]
mod toy;

use toy::Player;

type Messages = ([u8; HELLO_BYTES], [u8; CHALLENGE_BYTES], [u8; PROOF_BYTES]);

fn bytes<const N: usize>(rng: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| rng.next_u64() as u8)
}

fn player(rng: &mut Rng) -> Player {
    Player::new(rng.next_u64() as u32)
}

/// Two sides, one of whose messages, or none, is changed on its way. Whom each has accepted, and what went over the wire.
fn meet(
    rng: &mut Rng,
    key: &Key,
    change: &mut dyn FnMut(usize, &mut [u8]),
) -> (Option<Player>, Option<Player>, Messages) {
    let (dials, answers) = (player(rng), player(rng));
    let nonce: [u8; NONCE_BYTES] = bytes(rng);
    let (initiator, mut hello) = Initiator::new(key.clone(), dials, nonce);
    change(0, &mut hello);
    let mut messages = (hello, [0; CHALLENGE_BYTES], [0; PROOF_BYTES]);
    let Ok(responder) = Responder::new(&hello) else {
        return (None, None, messages);
    };
    let nonce: [u8; NONCE_BYTES] = bytes(rng);
    let Ok((challenged, mut challenge)) = responder.challenge(key.clone(), answers, nonce) else {
        return (None, None, messages);
    };
    change(1, &mut challenge);
    messages.1 = challenge;
    let Ok((by_initiator, mut proof)) = initiator.finish(&challenge) else {
        // Without an answer the responder gets what the hostile side makes up.
        let mut proof = bytes(rng);
        change(2, &mut proof);
        return (None, challenged.finish(&proof).ok(), messages);
    };
    assert_eq!(by_initiator, answers);
    change(2, &mut proof);
    messages.2 = proof;
    let by_responder = challenged.finish(&proof).ok();
    assert!(by_responder.is_none_or(|accepted| accepted == dials));
    (Some(by_initiator), by_responder, messages)
}

#[test]
fn handshakes() {
    explore(2_000, &[], |rng| {
        let key = Key::new(bytes::<KEY_BYTES>(rng));
        let (one, other, recorded) = meet(rng, &key, &mut |_, _| {});
        assert!(one.is_some() && other.is_some(), "nobody was in the way");
        let which = rng.below(3);
        let mut hostile = rng.fork();
        let repeats = rng.chance(1, 4);
        let mut changed = false;
        let (by_initiator, by_responder, _) = meet(rng, &key, &mut |message, bytes| {
            if message != which {
                return;
            }
            let before = bytes.to_vec();
            if repeats {
                let (hello, challenge, proof) = &recorded;
                bytes.copy_from_slice([&hello[..], challenge, proof][message]);
            } else {
                damage::in_place(&mut hostile, bytes);
            }
            changed = before != bytes;
        });
        // A message that was changed is noticed by whoever gets it or by whoever gets the answer.
        let accepted = match which {
            0 | 1 => by_initiator.is_some() || by_responder.is_some(),
            _ => by_responder.is_some(),
        };
        assert!(
            !(changed && accepted),
            "message {which} was changed and accepted"
        );
    });
}
