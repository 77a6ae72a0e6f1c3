//! A disk with numbered files, as a store sees one that loses its power: what was not flushed is lost, kept or torn, in
//! any order; a flushed bit may rot, a place become unreadable, a flush fail, the disk be full. Decides nothing about
//! when: the simulation calls.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::rng::Rng;

/// Bytes that are written whole or not at all.
pub const SECTOR: usize = 512;

/// Why the disk did not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// There is no file of this number.
    Absent,
    /// The bytes are not all within the file.
    Beyond,
    /// They cannot be read.
    Unreadable,
    /// There is no room.
    Full,
    /// What was written before may be lost, and no later flush says so again.
    NotFlushed,
}

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    rng: Rng,
    /// In bytes.
    capacity: usize,
    files: BTreeMap<u32, File>,
    /// Files that are removed and may come back.
    removed: BTreeMap<u32, File>,
    flush_fails: bool,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// What a read returns.
    now: Vec<u8>,
    /// What a power cut leaves, without what was not flushed.
    durable: Vec<u8>,
    unflushed: Vec<Write>,
    /// Whether the file itself outlives a power cut.
    is_named: bool,
    unreadable: Vec<Range<usize>>,
}

#[derive(Clone, Debug)]
struct Write {
    at: usize,
    bytes: Vec<u8>,
}

impl Disk {
    /// An empty disk of so many bytes.
    #[must_use]
    pub fn new(rng: Rng, capacity: usize) -> Self {
        Self {
            rng,
            capacity,
            files: BTreeMap::new(),
            removed: BTreeMap::new(),
            flush_fails: false,
        }
    }

    /// Writes into a file, which it makes if there is none. What lies between its end and the bytes is zeros.
    pub fn write(&mut self, file: u32, at: usize, bytes: &[u8]) -> Result<(), DiskError> {
        let length = |file: &File| file.now.len().next_multiple_of(SECTOR);
        let old = self.files.get(&file).map_or(0, length);
        let new = (at + bytes.len()).next_multiple_of(SECTOR).max(old);
        let used: usize = self.files.values().map(length).sum();
        if used - old + new > self.capacity {
            return Err(DiskError::Full);
        }
        let file = self.files.entry(file).or_default();
        let whole = at.next_multiple_of(SECTOR)..(at + bytes.len()) / SECTOR * SECTOR;
        file.unreadable
            .retain(|bad| bad.start < whole.start || bad.end > whole.end);
        lay(&mut file.now, at, bytes);
        let bytes = bytes.to_vec();
        file.unflushed.push(Write { at, bytes });
        Ok(())
    }

    /// What lies there.
    pub fn read(&self, file: u32, range: Range<usize>) -> Result<&[u8], DiskError> {
        let file = self.files.get(&file).ok_or(DiskError::Absent)?;
        let overlaps = |bad: &Range<usize>| bad.start < range.end && range.start < bad.end;
        if file.unreadable.iter().any(overlaps) {
            return Err(DiskError::Unreadable);
        }
        file.now.get(range).ok_or(DiskError::Beyond)
    }

    /// Bytes of a file.
    #[must_use]
    pub fn length(&self, file: u32) -> Option<usize> {
        self.files.get(&file).map(|file| file.now.len())
    }

    /// The numbers of the files, in order.
    pub fn files(&self) -> impl Iterator<Item = u32> {
        self.files.keys().copied()
    }

    /// Makes what was written into a file outlive a power cut; the file itself does by [`Disk::flush_names`] only.
    pub fn flush(&mut self, file: u32) -> Result<(), DiskError> {
        let file = self.files.get_mut(&file).ok_or(DiskError::Absent)?;
        if std::mem::take(&mut self.flush_fails) {
            // The kernel forgets that these were not written.
            file.settle(&mut self.rng);
            return Err(DiskError::NotFlushed);
        }
        for Write { at, bytes } in file.unflushed.drain(..) {
            lay(&mut file.durable, at, &bytes);
        }
        Ok(())
    }

    /// Removes a file.
    pub fn remove(&mut self, file: u32) -> Result<(), DiskError> {
        let gone = self.files.remove(&file).ok_or(DiskError::Absent)?;
        if gone.is_named {
            self.removed.insert(file, gone);
        }
        Ok(())
    }

    /// Makes outlive a power cut which files there are.
    pub fn flush_names(&mut self) {
        self.removed.clear();
        for file in self.files.values_mut() {
            file.is_named = true;
        }
    }

    /// The power goes and comes back.
    pub fn cut_power(&mut self) {
        let rng = &mut self.rng;
        self.files
            .retain(|_, file| file.is_named || rng.chance(1, 2));
        for (number, file) in std::mem::take(&mut self.removed) {
            if rng.chance(1, 2) {
                self.files.entry(number).or_insert(file);
            }
        }
        for file in self.files.values_mut() {
            file.settle(rng);
            file.now.clone_from(&file.durable);
            file.is_named = true;
        }
        self.flush_fails = false;
    }

    /// A bit of a file flips, without a word. None if the file is empty.
    pub fn rot(&mut self, file: u32) -> Option<usize> {
        let file = self.files.get_mut(&file)?;
        let place = (!file.durable.is_empty()).then(|| self.rng.below(file.durable.len()))?;
        let bit = 1 << self.rng.below(8);
        file.durable[place] ^= bit;
        file.now[place] ^= bit;
        Some(place)
    }

    /// The sector of a place cannot be read until it is written again, as a whole.
    pub fn lose_sector(&mut self, file: u32, place: usize) {
        if let Some(file) = self.files.get_mut(&file) {
            let start = place / SECTOR * SECTOR;
            file.unreadable.push(start..start + SECTOR);
        }
    }

    /// The next flush fails.
    pub fn fail_flush(&mut self) {
        self.flush_fails = true;
    }
}

impl File {
    /// Decides what happens to each write that was not flushed: it is lost, kept, or kept in some
    /// of its sectors.
    fn settle(&mut self, rng: &mut Rng) {
        for Write { at, bytes } in self.unflushed.drain(..) {
            let fate = rng.below(3);
            let mut place = at;
            while place < at + bytes.len() {
                let end = (place / SECTOR * SECTOR + SECTOR).min(at + bytes.len());
                if fate == 1 || fate == 2 && rng.chance(1, 2) {
                    lay(&mut self.durable, place, &bytes[place - at..end - at]);
                }
                place = end;
            }
        }
    }
}

/// Puts bytes at a place, behind zeros if it is beyond the end.
fn lay(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[at..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::for_each_seed;

    const FILE: u32 = 7;
    const LENGTH: usize = 3 * SECTOR;

    /// A disk whose file holds ones, flushed, and then twos, which are not.
    fn rewritten(rng: &mut Rng) -> Disk {
        let mut disk = Disk::new(rng.fork(), 10 * SECTOR);
        disk.write(FILE, 0, &[1; LENGTH]).unwrap();
        disk.flush(FILE).unwrap();
        disk.flush_names();
        disk.write(FILE, 0, &[2; LENGTH]).unwrap();
        disk
    }

    /// What each sector of the file holds.
    fn sectors(disk: &Disk) -> Vec<u8> {
        let bytes = disk.read(FILE, 0..LENGTH).unwrap();
        let of = |sector: &[u8]| {
            assert!(
                sector.iter().all(|byte| *byte == sector[0]),
                "a torn sector"
            );
            sector[0]
        };
        bytes.chunks(SECTOR).map(of).collect()
    }

    #[test]
    fn what_was_not_flushed_is_lost_kept_or_torn_between_sectors() {
        let mut seen = BTreeSet::new();
        for_each_seed(200, |rng| {
            let mut disk = rewritten(rng);
            assert_eq!(sectors(&disk), [2, 2, 2], "until then it is read");
            disk.cut_power();
            seen.insert(sectors(&disk));
        });
        assert_eq!(seen.len(), 8, "{seen:?}");
    }

    #[test]
    fn what_was_flushed_stays() {
        for_each_seed(20, |rng| {
            let mut disk = rewritten(rng);
            disk.flush(FILE).unwrap();
            disk.cut_power();
            assert_eq!(sectors(&disk), [2, 2, 2]);
        });
    }

    #[test]
    fn a_later_write_may_be_kept_without_an_earlier_one() {
        let mut seen = BTreeSet::new();
        for_each_seed(100, |rng| {
            let mut disk = Disk::new(rng.fork(), 10 * SECTOR);
            disk.write(FILE, 0, &[1; SECTOR]).unwrap();
            disk.write(FILE, SECTOR, &[1; SECTOR]).unwrap();
            disk.flush_names();
            disk.cut_power();
            let first = disk.read(FILE, 0..1).map(<[u8]>::to_vec);
            seen.insert((disk.length(FILE).unwrap(), first.unwrap_or_default()));
        });
        let (one, two) = (SECTOR, 2 * SECTOR);
        let all = [(0, vec![]), (one, vec![1]), (two, vec![0]), (two, vec![1])];
        assert_eq!(seen, all.into());
    }

    #[test]
    fn a_flush_that_fails_fails_once_and_what_it_lost_is_read_until_the_power_goes() {
        let mut lost = 0;
        for_each_seed(50, |rng| {
            let mut disk = rewritten(rng);
            disk.fail_flush();
            assert_eq!(disk.flush(FILE), Err(DiskError::NotFlushed));
            assert_eq!(disk.flush(FILE), Ok(()));
            assert_eq!(sectors(&disk), [2, 2, 2]);
            disk.cut_power();
            lost += u32::from(sectors(&disk) != [2, 2, 2]);
        });
        assert!(lost > 10, "{lost}");
    }

    #[test]
    fn files_come_and_go_for_good_once_their_names_are_flushed() {
        let mut seen = BTreeSet::new();
        for_each_seed(50, |rng| {
            let mut disk = rewritten(rng);
            disk.write(8, 0, &[3]).unwrap();
            disk.flush(8).unwrap();
            disk.remove(FILE).unwrap();
            let mut flushed = disk.clone();
            flushed.flush_names();
            flushed.cut_power();
            assert!(flushed.files().eq([8]));
            disk.cut_power();
            seen.insert(disk.files().collect::<Vec<_>>());
        });
        assert_eq!(seen, [vec![], vec![7], vec![7, 8], vec![8]].into());
    }

    #[test]
    fn a_full_disk_takes_nothing_that_needs_room() {
        let mut disk = Disk::new(Rng::new(1), 4 * SECTOR);
        disk.write(1, 0, &[1; 3 * SECTOR]).unwrap();
        assert_eq!(disk.write(2, SECTOR, &[1]), Err(DiskError::Full));
        assert_eq!(disk.length(2), None);
        disk.write(1, SECTOR, &[2; SECTOR]).unwrap();
        disk.write(2, 0, &[1]).unwrap();
        disk.remove(1).unwrap();
        disk.write(2, 0, &[1; 4 * SECTOR]).unwrap();
    }

    #[test]
    fn a_bit_rots_and_a_lost_sector_comes_back_by_a_whole_write() {
        let mut disk = rewritten(&mut Rng::new(1));
        disk.flush(FILE).unwrap();
        let place = disk.rot(FILE).unwrap();
        let byte = disk.read(FILE, place..place + 1).unwrap()[0];
        assert_eq!((byte ^ 2).count_ones(), 1);
        disk.lose_sector(FILE, SECTOR + 1);
        let read = |disk: &Disk| disk.read(FILE, 0..LENGTH).map(<[u8]>::len);
        assert_eq!(read(&disk), Err(DiskError::Unreadable));
        assert!(disk.read(FILE, 0..SECTOR).is_ok());
        disk.write(FILE, SECTOR + 1, &[4; SECTOR - 1]).unwrap();
        assert_eq!(read(&disk), Err(DiskError::Unreadable));
        disk.write(FILE, SECTOR, &[4; SECTOR]).unwrap();
        assert_eq!(read(&disk), Ok(LENGTH));
        assert_eq!(disk.read(FILE, 0..LENGTH + 1), Err(DiskError::Beyond));
        assert_eq!(disk.read(1, 0..1), Err(DiskError::Absent));
    }
}
