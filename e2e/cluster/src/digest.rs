//! SHA-256 of files and bytes, by the machine's `sha256sum`: the processor's instructions for it,
//! without a crate.

use std::path::Path;
use std::process::Command;

use crate::command;
use crate::error::{Error, Result};

/// The digest of a file, as 64 hexadecimal digits.
pub fn file(path: &Path) -> Result<String> {
    parse(&command::run(
        Command::new("sha256sum").arg("--").arg(path),
    )?)
}

/// The digest of some bytes, as 64 hexadecimal digits.
pub fn bytes(bytes: &[u8]) -> Result<String> {
    parse(&command::run_with_input(
        &mut Command::new("sha256sum"),
        bytes,
    )?)
}

fn parse(output: &str) -> Result<String> {
    // A leading backslash says that the file name is escaped; the digest is the same.
    let digest = output
        .trim_start_matches('\\')
        .get(..64)
        .unwrap_or_default();
    if digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digest.to_owned());
    }
    Err(Error::new(format!("sha256sum printed {output:?}")))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn the_digest_of_nothing_is_the_known_one() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(bytes(b"").unwrap(), empty);
    }
}
