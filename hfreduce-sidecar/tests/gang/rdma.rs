//! The stand-in for libibverbs that belongs to the tests of `link`: its devices write into memory of this very process,
//! and fail on request.

use std::path::{Path, PathBuf};

use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::{Preference, RdmaNegotiation};

pub(crate) const REGISTER_REFUSED: u32 = 2;
pub(crate) const STATUS: u32 = 4;
pub(crate) const REGISTER_WAITS: u32 = 10;
/// Of a registration: IBV_ACCESS_RELAXED_ORDERING.
const RELAXED_ORDERING: u32 = 1 << 20;

/// A stand-in of the test's own: a copy of the file, because a file is loaded once.
pub(crate) struct Fake {
    path: PathBuf,
    inject: unsafe extern "C" fn(u32, u64),
    registered: unsafe extern "C" fn(u64, *mut u64) -> u32,
    last_path: unsafe extern "C" fn() -> u64,
    _folder: tempfile::TempDir,
}

impl Fake {
    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn new() -> Self {
        let here = std::env::current_exe().unwrap();
        let built = here.ancestors().nth(2).unwrap();
        let built = built.join("examples/libfake_ibverbs.so");
        assert!(
            built.exists(),
            "{} is missing: run cargo build -p link --examples",
            built.display()
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfake.so");
        std::fs::copy(&built, &path).unwrap();
        // SAFETY: the library of our tests; types and names are those of its source.
        let (inject, registered, last_path) = unsafe {
            let loaded = libloading::Library::new(&path).unwrap();
            let inject = *loaded.get("fake_inject").unwrap();
            let registered = *loaded.get("fake_registered").unwrap();
            let last_path = *loaded.get("fake_path").unwrap();
            std::mem::forget(loaded);
            (inject, registered, last_path)
        };
        Self {
            path,
            inject,
            registered,
            last_path,
            _folder: folder,
        }
    }

    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn inject(&self, code: u32, value: u64) {
        // SAFETY: takes any numbers.
        unsafe { (self.inject)(code, value) };
    }

    /// Timeout and retries, in the code of the verbs.
    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn path_options(&self) -> (u64, u64) {
        // SAFETY: takes nothing.
        let path = unsafe { (self.last_path)() };
        (path & 0xff, path >> 8)
    }

    /// How many pieces of memory devices may write to in any order.
    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn relaxed(&self) -> usize {
        let flags = |place| {
            // SAFETY: the variable is ours.
            let flags = unsafe { (self.registered)(place, &mut 0) };
            (flags != 0).then_some(flags)
        };
        let all = (0..).map_while(flags);
        all.filter(|flags| flags & RELAXED_ORDERING != 0).count()
    }

    /// Bytes of the largest piece of memory that is registered, among those of 16 MiB and more.
    #[expect(unsafe_code, reason = "the stand-in's own function")]
    pub(crate) fn largest(&self) -> u64 {
        let bytes = |place| {
            let mut bytes = 0;
            // SAFETY: the variable is ours.
            let flags = unsafe { (self.registered)(place, &mut bytes) };
            (flags != 0).then_some(bytes)
        };
        let all = (0..).map_while(bytes);
        all.filter(|bytes| *bytes >= 16 << 20).max().unwrap_or(0)
    }

    pub(crate) fn options(&self, options: MemberOptions) -> MemberOptions {
        verbs(options, &self.path)
    }
}

/// RDMA with this library, and chunks that fill several slots.
pub(crate) fn verbs(options: MemberOptions, library: &Path) -> MemberOptions {
    MemberOptions {
        transport: Preference::Verbs,
        chunk_bytes: 4096,
        rdma: RdmaNegotiation {
            library: Some(library.to_owned()),
            ..RdmaNegotiation::default()
        },
        ..options
    }
}
