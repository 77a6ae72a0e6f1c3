//! What a hostile side does to what is valid.

use crate::Rng;

/// Numbers at which arithmetic goes wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    63,
    64,
    65,
    128,
    1 << 20,
    u32::MAX as u64,
    1 << 32,
    1 << 47,
    1 << 60,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// A number at an edge, near one, or any.
pub fn number(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.next_u64(),
        1 => rng
            .pick(&EDGES)
            .wrapping_add(rng.range(0..9))
            .wrapping_sub(4),
        2 => rng.range(0..100),
        _ => *rng.pick(&EDGES),
    }
}

/// Damages bytes in one to four places and keeps their number.
pub fn in_place(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => bytes[at] = rng.next_u64() as u8,
            _ => {
                let size = *rng.pick(&[2, 4, 8]);
                let number = number(rng).to_le_bytes();
                let end = bytes.len().min(at + size);
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
        }
    }
}

/// Damages bytes: changed, cut off, repeated, left out, put in, or gone on with as another message.
pub fn anyhow(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.below(bytes.len() + 1);
    let end = at + rng.below(bytes.len() - at + 1);
    match rng.below(8) {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_within(at..end),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let some: Vec<u8> = (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect();
            drop(bytes.splice(at..at, some));
        }
        4 => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[at.min(other.len())..]);
        }
        5 => renumber(rng, bytes),
        6 => {
            let nested = *rng.pick(&[&b"["[..], b"{\"a\":", b"\"", b"-", b"\\ud800", b"\xff"]);
            drop(bytes.splice(at..at, nested.repeat(1 + rng.below(300))));
        }
        _ if bytes.is_empty() => {}
        _ => in_place(rng, bytes),
    }
}

/// Puts another number in the place of one in a text.
fn renumber(rng: &mut Rng, text: &mut Vec<u8>) {
    let is_digit = |at: usize| text[at].is_ascii_digit();
    let starts: Vec<usize> = (0..text.len())
        .filter(|&at| is_digit(at) && (at == 0 || !is_digit(at - 1)))
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = *rng.pick(&starts);
    let digits = text[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    let end = start + digits.count();
    let new = match rng.below(8) {
        0 => "-1".to_owned(),
        1 => "18446744073709551616".to_owned(),
        2 => "1e308".to_owned(),
        3 => "null".to_owned(),
        _ => number(rng).to_string(),
    };
    drop(text.splice(start..end, new.into_bytes()));
}
