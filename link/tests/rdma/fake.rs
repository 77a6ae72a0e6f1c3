//! The stand-in library, loaded for one test, and what it can be made to do wrong.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use link::verbs::VerbsLibrary;

use crate::built::built;
use crate::nodes::{self, Node};

const SOURCES: [&str; 3] = [
    "tests/fake/lib.rs",
    "tests/fake/device.rs",
    "src/verbs/abi.rs",
];

pub(crate) const NO_DEVICE: u32 = 0;
pub(crate) const OPEN_REFUSED: u32 = 1;
pub(crate) const REGISTER_REFUSED: u32 = 2;
pub(crate) const INLINE_REFUSED: u32 = 3;
pub(crate) const STATUS: u32 = 4;
pub(crate) const DROPPED: u32 = 5;
pub(crate) const SHUFFLE: u32 = 6;
pub(crate) const PORT_DOWN: u32 = 7;
pub(crate) const INFINIBAND: u32 = 8;
pub(crate) const PORT_MUTE: u32 = 9;

/// A stand-in library of the test's own: a copy of the file, because a file is loaded once.
pub(crate) struct Fake {
    pub(crate) library: Arc<VerbsLibrary>,
    inject: unsafe extern "C" fn(u32, u64),
    alive: unsafe extern "C" fn() -> u64,
    registered: unsafe extern "C" fn(u64, *mut u64) -> u32,
    _folder: tempfile::TempDir,
}

impl Fake {
    #[expect(unsafe_code, reason = "the stand-in's own functions")]
    pub(crate) fn new() -> Self {
        let built = built("libfake_ibverbs.so", &SOURCES);
        let folder = tempfile::tempdir().unwrap();
        let copy: PathBuf = folder.path().join("libfake.so");
        fs::copy(&built, &copy).unwrap();
        let library = VerbsLibrary::load(Some(&copy)).unwrap();
        // SAFETY: loaded before; types and names are those of the file's source.
        let (inject, alive, registered) = unsafe {
            let loaded = libloading::Library::new(&copy).unwrap();
            let functions = (
                *loaded.get("fake_inject").unwrap(),
                *loaded.get("fake_alive").unwrap(),
                *loaded.get("fake_registered").unwrap(),
            );
            std::mem::forget(loaded);
            functions
        };
        Self {
            library,
            inject,
            alive,
            registered,
            _folder: folder,
        }
    }

    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn inject(&self, code: u32, value: u64) {
        // SAFETY: takes any numbers.
        unsafe { (self.inject)(code, value) };
    }

    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn alive(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { (self.alive)() }
    }

    /// Memory that is registered: its bytes, and the flags of its registration.
    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn registered(&self) -> Vec<(u64, u32)> {
        let at = |place| {
            let mut bytes = 0;
            // SAFETY: the variable is ours.
            let flags = unsafe { (self.registered)(place, &raw mut bytes) };
            (flags != 0).then_some((bytes, flags))
        };
        (0..).map_while(at).collect()
    }

    pub(crate) fn nodes(&self) -> [Node; 2] {
        nodes::nodes(&self.library).try_into().ok().unwrap()
    }
}
