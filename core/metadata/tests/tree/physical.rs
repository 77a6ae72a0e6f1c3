//! The bytes of files, as far as metadata depends on them: where each chunk ends.

use std::collections::BTreeMap;

use metadata::{FileLayout, InodeNumber, Trim};

#[derive(Default)]
pub(crate) struct Physical {
    /// Each chunk with its length.
    files: BTreeMap<InodeNumber, BTreeMap<u64, u64>>,
}

impl Physical {
    pub(crate) fn write(&mut self, inode: InodeNumber, layout: FileLayout, from: u64, to: u64) {
        let bytes = u64::from(layout.chunk_bytes);
        for chunk in from / bytes..to.div_ceil(bytes) {
            let length = (to - chunk * bytes).min(bytes);
            let end = self
                .files
                .entry(inode)
                .or_default()
                .entry(chunk)
                .or_default();
            *end = length.max(*end);
        }
    }

    /// Cuts one chunk off.
    pub(crate) fn trim(&mut self, inode: InodeNumber, trim: &Trim, chunk: u64) {
        let bytes = u64::from(trim.layout.chunk_bytes);
        let keep = trim.from.saturating_sub(chunk * bytes).min(bytes);
        if let Some(length) = self.files.entry(inode).or_default().get_mut(&chunk) {
            *length = keep.min(*length);
        }
    }

    /// Behind the last byte of those chunks that lie between two bytes; the first one, if there is none.
    pub(crate) fn length(&self, inode: InodeNumber, layout: FileLayout, from: u64, to: u64) -> u64 {
        let bytes = u64::from(layout.chunk_bytes);
        let chunks = self.files.get(&inode).into_iter().flatten();
        let within = chunks.filter(|(chunk, length)| {
            (from / bytes..to.div_ceil(bytes)).contains(*chunk) && **length > 0
        });
        let end = within.map(|(chunk, length)| chunk * bytes + length).max();
        end.unwrap_or(from).max(from)
    }

    pub(crate) fn remove(&mut self, inode: InodeNumber, chunk: u64) {
        if let Some(chunks) = self.files.get_mut(&inode) {
            chunks.remove(&chunk);
            if chunks.is_empty() {
                self.files.remove(&inode);
            }
        }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = InodeNumber> {
        self.files.keys().copied()
    }
}
