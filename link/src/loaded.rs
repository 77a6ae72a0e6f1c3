//! Libraries that are loaded when they are asked for, so that one program starts on machines with and without what they
//! drive. Owns loading and finding functions; their types are declared beside who calls them.

use std::mem::ManuallyDrop;
use std::path::PathBuf;

/// A library that is never unloaded: others of the process may have it too, and leave threads and handlers in it.
#[derive(Debug)]
pub struct Loaded {
    library: ManuallyDrop<libloading::Library>,
    path: PathBuf,
}

/// There is no such library, or it cannot be loaded.
#[derive(Debug)]
pub struct LibraryAbsent {
    pub path: PathBuf,
    pub source: libloading::Error,
}

/// The library is too old to have a function.
#[derive(Debug)]
pub struct Missing {
    pub path: PathBuf,
    pub function: &'static str,
}

#[expect(unsafe_code, reason = "loading code")]
impl Loaded {
    /// Loads the library of this name or path.
    ///
    /// # Safety
    /// Its initialisers run: it is code that this process trusts.
    pub unsafe fn open(path: PathBuf) -> Result<Self, LibraryAbsent> {
        // SAFETY: passed on to the caller.
        match unsafe { libloading::Library::new(&path) } {
            Ok(library) => Ok(Self {
                library: ManuallyDrop::new(library),
                path,
            }),
            Err(source) => Err(LibraryAbsent { path, source }),
        }
    }

    /// A function by its name; its address stays good.
    ///
    /// # Safety
    /// `T` is the function's type.
    pub unsafe fn function<T: Copy>(&self, name: &'static str) -> Result<T, Missing> {
        // SAFETY: passed on to the caller.
        let found = unsafe { self.library.get::<T>(name) };
        found.map(|function| *function).map_err(|_| Missing {
            path: self.path.clone(),
            function: name,
        })
    }
}

/// The errors of who loads a library, made of ours.
#[macro_export]
macro_rules! load_errors {
    ($error:ident) => {
        impl From<$crate::loaded::LibraryAbsent> for $error {
            fn from(absent: $crate::loaded::LibraryAbsent) -> Self {
                let $crate::loaded::LibraryAbsent { path, source } = absent;
                Self::Load { path, source }
            }
        }

        impl From<$crate::loaded::Missing> for $error {
            fn from(missing: $crate::loaded::Missing) -> Self {
                let $crate::loaded::Missing { path, function } = missing;
                Self::Old { path, function }
            }
        }
    };
}
