//! What a chunk holds after an edit, written down as plainly as can be, and edits at random.

use chunk_store::StateEdit;
use sim::Rng;

/// What an edit makes of a chunk's bytes. None: there is no chunk any more.
pub(crate) fn edited(old: Option<&[u8]>, edit: StateEdit, new: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = old.unwrap_or_default().to_vec();
    match edit {
        StateEdit::Write { length: 0, .. } => {}
        StateEdit::Write { offset, length } => {
            let end = (offset + length) as usize;
            bytes.resize(bytes.len().max(end), 0);
            bytes[offset as usize..end].copy_from_slice(new);
        }
        StateEdit::Truncate { length } => bytes.resize(length as usize, 0),
        StateEdit::Replace { .. } => bytes = new.to_vec(),
        StateEdit::Remove => return None,
    }
    Some(bytes)
}

/// Any edit, with its bytes: at block boundaries, near them, and anywhere.
pub(crate) fn any_edit(rng: &mut Rng, longest: u64) -> (StateEdit, Vec<u8>) {
    let length = |rng: &mut Rng| match rng.below(4) {
        0 => rng.range(0..longest / 1024 + 1) as u32 * 1024,
        1 => (rng.range(0..longest / 1024 + 1) as u32 * 1024 + 1)
            .saturating_sub(rng.range(0..3) as u32),
        2 => rng.range(0..200) as u32,
        _ => rng.range(0..longest) as u32,
    };
    let edit = match rng.below(10) {
        0..=4 => StateEdit::Write {
            offset: length(rng),
            length: length(rng) / 2,
        },
        5..=6 => StateEdit::Truncate {
            length: length(rng),
        },
        7..=8 => StateEdit::Replace {
            length: length(rng),
        },
        _ => StateEdit::Remove,
    };
    let (StateEdit::Write { length, .. } | StateEdit::Replace { length }) = edit else {
        return (edit, Vec::new());
    };
    // Cheap bytes that differ from one edit to the next.
    let start = rng.next_u64();
    let bytes =
        (0..u64::from(length)).map(|at| (start.wrapping_add(at.wrapping_mul(0x9e37)) >> 3) as u8);
    (edit, bytes.collect())
}
