//! Reads and writes of open files, and what happens to their lengths.

use std::sync::Arc;
use std::time::Duration;

use chain_link::ChunkBytes;
use fuse::Errno;
use fuse::answer::{Answer, Opened};
use fuse::request::FileHandle;
use fuse::serve::Replier;
use futures::future::try_join_all;
use metadata::{Errno as Refusal, HandleId, InodeNumber, OpenedFile, Trim, WantedHandle};
use rustix::fs::OFlags;
use storage_rpc::MetaError;
use tracing::warn;

use super::{Failed, FileSystem, Late, Outcome, answer, now_ns};
use crate::chunks::{ChunkError, Piece, pieces};
use crate::open_files::OpenFile;

/// Up to where a handle may write when it is opened. It asks for more when it comes there, each time for as much again, up to
/// the most: then a transaction for 64 MiB.
const FIRST_BOUND_BYTES: u64 = 1 << 20;
const MOST_BOUND_STEP_BYTES: u64 = 64 << 20;
/// How long after a failure a file is cut off again.
const TRIM_PAUSE: Duration = Duration::from_millis(200);
/// Holes are answered from here.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl FileSystem {
    pub(super) fn wanted_handle(&self, flags: u32) -> WantedHandle {
        let flags = OFlags::from_bits_retain(flags);
        let writes = !flags.intersection(OFlags::ACCMODE).is_empty();
        WantedHandle {
            handle: self.handle_id(self.open.number()),
            bound: writes.then_some(FIRST_BOUND_BYTES),
            is_truncating: flags.contains(OFlags::TRUNC),
            is_exclusive: flags.contains(OFlags::EXCL),
        }
    }

    fn handle_id(&self, number: u64) -> HandleId {
        HandleId {
            mount: self.names.mount(),
            number,
        }
    }

    pub(super) async fn open(&self, inode: InodeNumber, flags: u32, replier: Late) -> Outcome<()> {
        let open = self.wanted_handle(flags);
        if open.is_truncating {
            self.say_all(inode).await?;
        }
        let opened = self.names.open(inode, open).await?;
        let opened = self.opened(flags, &open, &opened).await?;
        answer(replier, &Answer::Opened(opened));
        Ok(())
    }

    /// Keeps a file that was opened.
    pub(super) async fn opened(
        &self,
        flags: u32,
        open: &WantedHandle,
        opened: &OpenedFile,
    ) -> Outcome<Opened> {
        let inode = opened.attributes.inode;
        let layout = opened.attributes.layout;
        let layout = layout.ok_or(Failed::NoLayout)?;
        let number = open.handle.number;
        self.open.open(number, opened, layout);
        if let Some(trim) = &opened.trim {
            self.trim(inode, trim).await?;
        }
        Ok(Opened {
            // Whoever wants no cache may write in several places at once; the kernel sends one write at a time otherwise.
            direct_io: OFlags::from_bits_retain(flags).contains(OFlags::DIRECT),
            parallel_direct_writes: true,
            // What it has written is said when it is closed.
            no_flush: open.bound.is_none(),
            ..Opened::new(FileHandle(number))
        })
    }

    /// Cuts chunks off, and says so.
    pub(super) async fn trim(&self, inode: InodeNumber, trim: &Trim) -> Outcome<()> {
        let Trim {
            cut,
            from,
            reach,
            layout,
        } = *trim;
        // Until it is done nobody may write the file, so it is tried for as long as there is a session.
        while let Err(error) = self.chunks.cut(inode, &layout, from, reach).await {
            warn!(%error, "failed to cut a file off, trying again");
            if matches!(error, ChunkError::Ended) {
                return Err(error.into());
            }
            tokio::time::sleep(TRIM_PAUSE).await;
        }
        self.names.trimmed(inode, cut).await?;
        // What is not written since is as the trim has left it.
        for file in self.open.of(inode) {
            let mut progress = file.progress();
            if progress.written.is_none() && progress.cut < cut {
                progress.cut = cut;
                progress.size = from;
            }
        }
        Ok(())
    }

    /// Says what handles of this mount have written to a file.
    pub(super) async fn say_all(&self, inode: InodeNumber) -> Outcome<()> {
        for file in self.open.of(inode) {
            self.say(&file).await?;
        }
        Ok(())
    }

    pub(super) async fn flush(&self, handle: FileHandle) -> Outcome<()> {
        let file = self.open.file(handle).ok_or(Failed::Errno(Errno::BADF))?;
        self.say(&file).await
    }

    pub(super) async fn sync(&self, handle: FileHandle) -> Outcome<()> {
        let file = self.open.file(handle).ok_or(Failed::Errno(Errno::BADF))?;
        if file.progress().needs_sync() {
            self.say(&file).await?;
        }
        Ok(())
    }

    /// Says what a handle has written.
    async fn say(&self, file: &OpenFile) -> Outcome<()> {
        let _saying = file.saying.lock().await;
        self.say_alone(file).await
    }

    async fn say_alone(&self, file: &OpenFile) -> Outcome<()> {
        let (inode, handle) = (file.inode, self.handle_id(file.number));
        loop {
            let progress = *file.progress();
            let Some(written) = progress.written else {
                return Ok(());
            };
            match self.names.sync(inode, handle, written).await {
                Ok(extent) => {
                    file.said(&progress, extent.size, extent.cut);
                    return Ok(());
                }
                Err(error) => self.learn(file, error).await?,
            }
        }
    }

    /// Somebody has cut the file off: goes on with what is left.
    async fn learn(&self, file: &OpenFile, error: MetaError) -> Outcome<()> {
        let MetaError::Refused(Refusal::Cut {
            cut,
            size,
            bound,
            layout,
        }) = error
        else {
            return Err(error.into());
        };
        let length = self
            .chunks
            .measure(file.inode, &layout, size..bound)
            .await?;
        file.restart(cut, length);
        Ok(())
    }

    /// Lets a handle write up to `end`.
    async fn extend(&self, file: &OpenFile, end: u64) -> Outcome<()> {
        let _saying = file.saying.lock().await;
        let handle = self.handle_id(file.number);
        loop {
            let progress = *file.progress();
            let Some(bound) = progress.bound else {
                return Err(Failed::Errno(Errno::BADF));
            };
            if bound >= end {
                return Ok(());
            }
            let step = bound.clamp(FIRST_BOUND_BYTES, MOST_BOUND_STEP_BYTES);
            let most = file.layout.most_bytes();
            if end > most {
                return Err(Failed::Errno(Errno::FBIG));
            }
            let wanted = end.saturating_add(step).min(most);
            match self
                .names
                .extend(file.inode, handle, progress.cut, wanted)
                .await
            {
                Ok(extent) => file.progress().bound = extent.bound,
                Err(error) => {
                    self.learn(file, error).await?;
                    self.say_alone(file).await?;
                }
            }
        }
    }

    pub(super) async fn release(&self, handle: FileHandle) -> Outcome<()> {
        let Some(file) = self.open.close(handle) else {
            return Ok(());
        };
        self.say(&file).await?;
        let handle = self.handle_id(file.number);
        self.names.close(file.inode, handle, None).await?;
        Ok(())
    }

    /// The data is the kernel's only until the request is left.
    pub(super) fn start_write(
        self: &Arc<Self>,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        replier: Replier,
    ) {
        let Some(file) = self.open.file(handle) else {
            return answer(replier, &Answer::Error(Errno::BADF));
        };
        let length = data.len();
        let mut from = 0;
        let mut parts = Vec::new();
        for piece in pieces(&file.layout, offset, length as u64) {
            let to = from + piece.length as usize;
            match self.chunks.copy(&data[from..to]) {
                Ok(bytes) => parts.push((piece, bytes)),
                Err(error) => {
                    return answer(replier, &Answer::Error(Failed::from(error).errno()));
                }
            }
            from = to;
        }
        let end = offset + length as u64;
        self.spawn(replier, move |fs, replier| async move {
            fs.write(&file, end, parts).await?;
            answer(replier, &Answer::Written(length as u32));
            Ok(())
        });
    }

    async fn write(
        &self,
        file: &OpenFile,
        end: u64,
        parts: Vec<(Piece, ChunkBytes)>,
    ) -> Outcome<()> {
        while !file.begin_write(end, now_ns()) {
            self.extend(file, end).await?;
        }
        let write = |(piece, bytes)| self.chunks.write(file.inode, &file.layout, piece, bytes);
        try_join_all(parts.into_iter().map(write)).await?;
        Ok(())
    }

    pub(super) async fn read(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
        replier: Late,
    ) -> Outcome<()> {
        let file = self.open.file(handle).ok_or(Failed::Errno(Errno::BADF))?;
        let end = offset.saturating_add(size.into());
        let mut known = self.known_size(&file);
        if end > known {
            // Somebody may have made it longer.
            let attributes = self.names.get_attributes(file.inode).await?;
            file.progress().size = attributes.size;
            known = self.known_size(&file);
        }
        let length = end.min(known).saturating_sub(offset);
        let wanted = pieces(&file.layout, offset, length);
        let read = |piece: &Piece| self.chunks.read(file.inode, &file.layout, *piece);
        let found = try_join_all(wanted.iter().map(read)).await?;
        let mut parts: Vec<&[u8]> = Vec::new();
        for (piece, bytes) in wanted.iter().zip(&found) {
            let bytes = bytes.as_deref().unwrap_or_default();
            parts.push(bytes);
            let mut hole = piece.length as usize - bytes.len();
            while hole > 0 {
                let zeros = &ZEROS[..hole.min(ZEROS.len())];
                parts.push(zeros);
                hole -= zeros.len();
            }
        }
        answer(replier, &Answer::Pieces(&parts));
        Ok(())
    }

    /// Of a file, as far as this mount knows it.
    fn known_size(&self, file: &OpenFile) -> u64 {
        let said = file.progress().size;
        let of = self.open.of(file.inode);
        let written = of.iter().filter_map(|file| file.progress().written);
        written.map(|written| written.length).fold(said, u64::max)
    }

    /// What handles of this mount have written is part of the file for its programs.
    pub(super) fn with_written(&self, size: u64, inode: InodeNumber, cut: u64) -> u64 {
        let of = self.open.of(inode);
        let written = of.iter().filter_map(|file| file.progress().written);
        let written = written.filter(|written| written.cut == cut);
        written.map(|written| written.length).fold(size, u64::max)
    }
}
