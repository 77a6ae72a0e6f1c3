//! What a policy's runs are called, and the hash that names and due times come from. Leaves when a
//! run is created to `due`.

use super::DuePolicy;

/// Most characters of a NodeValidation's name, by its definition.
const NAME_LENGTH: usize = 50;
/// Of these, for the policy's name. Nine are for the hash, the rest for the node's.
const POLICY_LENGTH: usize = 20;

/// `<policy>-<node, cut>-<hash>`, of the characters that a NodeValidation's name may have.
pub(super) fn run_name(policy: &DuePolicy, node: &str, since: i64) -> String {
    let word = |name: &str, length: usize| -> String {
        let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        let letters = name
            .chars()
            .map(|letter| if allowed(letter) { letter } else { '-' });
        letters.take(length).collect()
    };
    let level = policy.level as u8;
    let parts = [
        policy.uid.as_bytes(),
        node.as_bytes(),
        &[level],
        &since.to_le_bytes(),
    ];
    let hash = hash(parts) >> 32;
    let mut name = word(&policy.name, POLICY_LENGTH);
    if !name.starts_with(|letter: char| letter.is_ascii_lowercase()) {
        name.replace_range(..name.len().min(1), "p");
    }
    let length = NAME_LENGTH - name.len() - "--01234567".len();
    format!("{name}-{}-{hash:08x}", word(node, length))
}

/// FNV-1a, mixed so that similar names differ in all bits. Not the standard library's, which may
/// change: then all due times and names would.
pub(super) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // A byte that no name has ends each.
        for byte in part.iter().chain(&[0xff]) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    sum = (sum ^ (sum >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ (sum >> 31)
}
