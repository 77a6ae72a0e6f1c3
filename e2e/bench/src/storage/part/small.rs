//! Small things, one after the other, and how long each took.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::fill;

/// Bytes of a small write.
pub(super) const SMALL_BYTES: usize = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct Repeated {
    /// The file, or the folder that is made.
    path: PathBuf,
    #[arg(long)]
    count: usize,
}

/// Runs it so often; the microseconds of each.
pub(super) fn repeat(count: usize, mut once: impl FnMut(usize) -> Result<()>) -> Result<Value> {
    let mut micros = Vec::with_capacity(count);
    for number in 0..count {
        let started = Instant::now();
        once(number)?;
        micros.push(started.elapsed().as_secs_f64() * 1e6);
    }
    Ok(json!({ "micros": micros }))
}

/// Overwrites a file that is there, from its beginning.
pub(super) fn sync(repeated: &Repeated) -> Result<Value> {
    let Repeated { path, count } = repeated;
    let file = File::options().write(true).open(path);
    let file = file.with_context(|| format!("failed to open {}", path.display()))?;
    let mut bytes = vec![0; SMALL_BYTES];
    repeat(*count, |number| {
        fill(&mut bytes, number as u64);
        file.write_all_at(&bytes, (number * SMALL_BYTES) as u64)
            .and_then(|()| file.sync_all())
            .with_context(|| format!("failed to write {} and sync it", path.display()))
    })
}

pub(super) fn create(repeated: &Repeated) -> Result<Value> {
    let Repeated { path, count } = repeated;
    fs::create_dir(path).with_context(|| format!("failed to make {}", path.display()))?;
    repeat(*count, |number| {
        let file = path.join(number.to_string());
        let created = File::create_new(&file).map(drop);
        created.with_context(|| format!("failed to create {}", file.display()))
    })
}
