//! Volumes: trees with a promise of bytes. Made and deleted by name, as often as somebody asks.

use serde::{Deserialize, Serialize};

use crate::inodes::MODE_BITS;
use crate::keys;
use crate::layout::FileLayout;
use crate::once::Work;
use crate::records::InodeRecord;
use crate::request::{Errno, MetaReply, VolumeSettings, VolumeView};
use crate::step::{Outcome, RangeRead, parse};
use crate::types::{InodeKind, InodeNumber};
use crate::usage::VolumeUsage;

/// Longest name of a volume, in bytes.
const MOST_NAME_BYTES: usize = 128;
/// Parts of a volume's usage that are read at once.
const USAGES: usize = 1024;

/// A volume as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VolumeRecord {
    root: InodeNumber,
    settings: VolumeSettings,
    layout: FileLayout,
}

impl VolumeRecord {
    fn view(&self, usage: VolumeUsage) -> MetaReply {
        MetaReply::Volume(VolumeView {
            root: self.root,
            settings: self.settings,
            layout: self.layout,
            usage,
        })
    }
}

impl Work<'_> {
    pub(crate) fn make_volume(
        &mut self,
        name: &str,
        settings: &VolumeSettings,
        layout: &FileLayout,
        most_promised: u64,
    ) -> Outcome<MetaReply> {
        let is_name = (1..=MOST_NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name || !layout.is_valid() {
            return Err(Errno::Invalid.into());
        }
        let key = keys::volume(name);
        self.seen.need([key.clone(), keys::promised()], [])?;
        if let Some(volume) = self.seen.record::<VolumeRecord>(key.clone())? {
            return match volume.settings == *settings {
                true => Ok(volume.view(VolumeUsage::default())),
                false => Err(Errno::Exists.into()),
            };
        }
        let promised = self.promised()?.saturating_add(settings.bytes);
        if promised > most_promised {
            return Err(Errno::NoSpace.into());
        }
        let volume = VolumeRecord {
            root: self.given.fresh,
            settings: *settings,
            layout: *layout,
        };
        self.changes.put(key, &volume)?;
        self.changes.put(keys::promised(), &promised)?;
        self.changes
            .put(keys::inode(volume.root), &self.root(&volume))?;
        self.touch(volume.root)?;
        Ok(volume.view(VolumeUsage::default()))
    }

    fn root(&self, volume: &VolumeRecord) -> InodeRecord {
        let now_ns = self.given.now_ns;
        InodeRecord {
            kind: InodeKind::Directory,
            mode: volume.settings.mode & MODE_BITS,
            uid: volume.settings.uid,
            gid: volume.settings.gid,
            links: 1,
            device: 0,
            size: 0,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            modified_ns: now_ns,
            ctime_ns: now_ns,
            volume: volume.root,
            parent: Some(volume.root),
            layout: Some(volume.layout),
            reach: 0,
            cut: 0,
            trimmer: None,
        }
    }

    pub(crate) fn delete_volume(&mut self, name: &str) -> Outcome<MetaReply> {
        let key = keys::volume(name);
        self.seen.need([key.clone(), keys::promised()], [])?;
        let Some(volume) = self.seen.record::<VolumeRecord>(key.clone())? else {
            return Ok(MetaReply::Done);
        };
        let promised = self.promised()?.saturating_sub(volume.settings.bytes);
        let root = self.inode(volume.root)?;
        self.changes.delete(key);
        self.changes.put(keys::promised(), &promised)?;
        self.collect_later(volume.root, &root)?;
        Ok(MetaReply::Done)
    }

    pub(crate) fn get_volume(&self, name: &str) -> Outcome<MetaReply> {
        let volume = self.seen.record::<VolumeRecord>(keys::volume(name))?;
        let volume = volume.ok_or(Errno::NotFound)?;
        let (mut usage, mut after) = (VolumeUsage::default(), None);
        loop {
            let rows = self.seen.range(RangeRead::Plain {
                prefix: keys::usages(volume.root),
                after,
                limit: USAGES,
            })?;
            for (key, value) in rows {
                usage = usage.and(parse(key, value)?);
            }
            match rows.last() {
                Some((last, _)) if rows.len() == USAGES => after = Some(last.clone()),
                Some(_) | None => return Ok(volume.view(usage)),
            }
        }
    }

    fn promised(&self) -> Outcome<u64> {
        Ok(self.seen.record(keys::promised())?.unwrap_or(0))
    }

    pub(crate) fn get_promised(&self) -> Outcome<MetaReply> {
        let bytes = self.promised()?;
        Ok(MetaReply::Promised { bytes })
    }
}
