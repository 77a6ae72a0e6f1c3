//! Paths in requests: folders below the kubelet's, and no others.

use std::io;
use std::path::{Component, Path, PathBuf};

/// The kernel's limit on a path, with the byte that ends it.
const PATH_LIMIT_BYTES: usize = 4095;

/// Why a path is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("the path {path:?} is not absolute, has a `..` or a NUL, or is too long")]
    Malformed { path: String },
    #[error(
        "the path {path:?} is not below the kubelet's folder {kubelet}; is the kubelet's --root-dir another?"
    )]
    Elsewhere { path: String, kubelet: PathBuf },
}

/// The kubelet's folder.
#[derive(Clone, Debug)]
pub(crate) struct KubeletPaths {
    /// As requests name it.
    kubelet: PathBuf,
    /// As the kernel does.
    real: PathBuf,
}

impl KubeletPaths {
    /// The folder has to be there.
    pub(crate) fn new(kubelet: &Path) -> io::Result<Self> {
        Ok(Self {
            kubelet: kubelet.to_owned(),
            real: kubelet.canonicalize()?,
        })
    }

    /// A path below the kubelet's folder, as the table of mounts names it. Nothing but the text is
    /// looked at: what is at the path may not answer.
    pub(crate) fn check(&self, path: &str) -> Result<PathBuf, PathError> {
        let is_malformed = path.len() > PATH_LIMIT_BYTES
            || path.contains('\0')
            || !Path::new(path).is_absolute()
            || Path::new(path)
                .components()
                .any(|component| component == Component::ParentDir);
        if is_malformed {
            let path = path.to_owned();
            return Err(PathError::Malformed { path });
        }
        match Path::new(path).strip_prefix(&self.kubelet) {
            // Components, so that no slash is left at the end.
            Ok(below) if below.components().next().is_some() => {
                Ok(self.real.components().chain(below.components()).collect())
            }
            Ok(_) | Err(_) => Err(PathError::Elsewhere {
                path: path.to_owned(),
                kubelet: self.kubelet.clone(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paths() -> KubeletPaths {
        KubeletPaths {
            kubelet: PathBuf::from("/kubelet"),
            real: PathBuf::from("/disk/kubelet"),
        }
    }

    #[test]
    fn folders_below_the_kubelets_are_taken_as_the_kernel_names_them() {
        for path in ["/kubelet/pods/a b/mount", "/kubelet//pods/./a b/mount/"] {
            let taken = paths().check(path).unwrap();
            // A slash at the end would be a name of its own in the table of mounts.
            assert_eq!(taken.as_os_str(), "/disk/kubelet/pods/a b/mount");
        }
    }

    #[test]
    fn other_paths_are_refused_by_name() {
        let long = format!("/kubelet/{}", "a/".repeat(3000));
        for path in ["kubelet/pods", "", "/kubelet/../etc", "/kubelet/a\0", &long] {
            let path = path.to_owned();
            let refused = paths().check(&path).unwrap_err();
            assert_eq!(refused, PathError::Malformed { path });
        }
        for path in [
            "/kubelet",
            "/kubelet/",
            "/kubelets/pods",
            "/etc",
            "/",
            "/disk/kubelet/a",
        ] {
            let refused = paths().check(path).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("{path:?} is not below")),
                "{refused}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_taken_leaves_the_kubelets_folder(
            path in "(/kubelet)?(/{1,2}(\\.{1,3}|[a-b \u{e4}\0]{0,3}|kubelet)){0,6}/?",
        ) {
            if let Ok(taken) = paths().check(&path) {
                prop_assert!(taken.starts_with("/disk/kubelet") && taken != paths().real);
                let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
                prop_assert!(taken.components().all(is_plain));
                let text = taken.to_str().unwrap_or_default();
                prop_assert!(!text.ends_with('/') && !text.contains("//"));
            }
        }

        #[test]
        fn any_text_is_taken_or_refused(path in ".{0,40}") {
            paths().check(&path).ok();
        }
    }
}
