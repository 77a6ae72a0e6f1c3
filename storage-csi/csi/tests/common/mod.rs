//! Volumes in a folder, a file for each: they outlive the process that made them, as real ones do.
//! And what both test programs wait and call with.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use csi::{
    StoreUnavailable, VolumeCapacity, VolumeError, VolumeRecord, VolumeRoot, VolumeStore,
    WantedVolume,
};
use tonic::transport::{Channel, Endpoint};

/// What all volumes together may have.
pub(crate) const TOTAL_BYTES: u64 = 100 << 30;
/// A store with this file does not answer.
pub(crate) const DOWN: &str = "down";

/// A store of volumes.
pub(crate) struct FolderStore {
    folder: PathBuf,
    /// One call after the other.
    turn: Mutex<()>,
}

impl FolderStore {
    pub(crate) fn new(folder: PathBuf) -> Self {
        let turn = Mutex::default();
        Self { folder, turn }
    }

    /// The volume of an id, from its file.
    pub(crate) fn find(&self, id: &str) -> Option<VolumeRecord> {
        if id.contains(['/', '\0']) || !id.starts_with("volume-") {
            return None;
        }
        let text = fs::read_to_string(self.folder.join(id)).ok()?;
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [bytes, mode, uid, gid] = numbers[..] else {
            panic!("{text:?}");
        };
        let root = VolumeRoot {
            mode: mode as u32,
            uid: uid as u32,
            gid: gid as u32,
        };
        let id = id.to_owned();
        Some(VolumeRecord { id, bytes, root })
    }

    fn sum(&self) -> u64 {
        let files = fs::read_dir(&self.folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names
            .filter_map(|name| self.find(&name))
            .map(|volume| volume.bytes)
            .sum()
    }

    fn answers(&self) -> Result<(), StoreUnavailable> {
        let is_down = self.folder.join(DOWN).exists();
        let why = || StoreUnavailable("the file `down` is there".to_owned());
        if is_down { Err(why()) } else { Ok(()) }
    }

    fn room(&self) -> VolumeCapacity {
        VolumeCapacity {
            total_bytes: TOTAL_BYTES,
            promised_bytes: self.sum(),
        }
    }
}

impl VolumeStore for FolderStore {
    async fn create(&self, name: &str, wanted: WantedVolume) -> Result<VolumeRecord, VolumeError> {
        self.answers()?;
        let _turn = self.turn.lock().unwrap();
        let WantedVolume { bytes, root } = wanted;
        // Names of up to 128 bytes with any characters; a file's has at most 255.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let id = format!("volume-{hash:016x}");
        if let Some(there) = self.find(&id) {
            let is_same = there.bytes == bytes && there.root == root;
            return if is_same {
                Ok(there)
            } else {
                Err(VolumeError::Exists(there))
            };
        }
        let room = self.room();
        if bytes > room.left_bytes() {
            return Err(VolumeError::NoRoom(room));
        }
        let VolumeRoot { mode, uid, gid } = root;
        fs::write(self.folder.join(&id), format!("{bytes} {mode} {uid} {gid}")).unwrap();
        Ok(VolumeRecord { id, bytes, root })
    }

    async fn delete(&self, id: &str) -> Result<(), StoreUnavailable> {
        self.answers()?;
        let _turn = self.turn.lock().unwrap();
        if self.find(id).is_some() {
            fs::remove_file(self.folder.join(id)).unwrap();
        }
        Ok(())
    }

    async fn get(&self, id: &str) -> Result<Option<VolumeRecord>, StoreUnavailable> {
        self.answers()?;
        Ok(self.find(id))
    }

    async fn capacity(&self) -> Result<VolumeCapacity, StoreUnavailable> {
        self.answers()?;
        Ok(self.room())
    }

    async fn is_ready(&self) -> bool {
        self.answers().is_ok()
    }
}

/// Connects as a Go client does: it says `localhost`, whatever it dials.
pub(crate) async fn connect(socket: &Path) -> io::Result<Channel> {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
    let endpoint = endpoint.origin("http://localhost".parse().unwrap());
    endpoint.connect().await.map_err(io::Error::other)
}
