//! What is in each image of ours. The archives and the Containerfiles are both made from this
//! table.

use std::path::Path;

use cluster::image::{Entry, Image, ImageConfig, reference};
use cluster::tools::{CSI_PROVISIONER, ETCD, Program, Tools};

/// A user that owns nothing, as in common base images.
pub(crate) const NOBODY: u32 = 65_532;

/// What a program needs at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linking {
    /// Nothing: it runs in an empty image, and in anybody's.
    Static,
    /// The C library of the machine that built it, so that it can load libraries itself.
    Dynamic,
}

/// A program of the workspace: the package it is built from has its name.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) package: &'static str,
    pub(crate) path: &'static str,
    pub(crate) linking: Linking,
}

/// Who runs an image's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Nobody,
    /// The reason ends the sentence `Root, because it ...`.
    Root(&'static str),
}

/// An image that holds programs of ours, and the libraries of those that load any.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// The image's name, and the folder where its Containerfile lies.
    pub(crate) name: &'static str,
    /// The first one is what a container of the image runs.
    pub(crate) binaries: &'static [Binary],
    pub(crate) user: User,
    /// It is copied to every node.
    pub(crate) max_megabytes: u64,
}

/// An image that others publish: it is made here of a program of `e2e/tools`, since the test cluster reaches no registry.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) program: Program,
    /// Where the published image has it, so that one pod fits both.
    path: &'static str,
    pub(crate) max_megabytes: u64,
}

pub(crate) const IMAGES: &[Recipe] = &[
    Recipe {
        name: "operator",
        binaries: &[Binary {
            package: "operator",
            path: "/usr/bin/operator",
            linking: Linking::Static,
        }],
        user: User::Nobody,
        max_megabytes: 30,
    },
    // The launcher travels with the sidecar, which puts it into the pod: so any trainer image will
    // do.
    Recipe {
        name: "hfreduce-sidecar",
        binaries: &[
            Binary {
                package: "hfreduce-sidecar",
                path: "/usr/bin/hfreduce-sidecar",
                // libibverbs, which loads its providers.
                linking: Linking::Dynamic,
            },
            Binary {
                package: "launcher",
                path: "/usr/bin/launcher",
                linking: Linking::Static,
            },
        ],
        user: User::Nobody,
        max_megabytes: 30,
    },
    Recipe {
        name: "device-plugin",
        binaries: &[Binary {
            package: "device-plugin",
            path: "/usr/bin/device-plugin",
            linking: Linking::Static,
        }],
        user: User::Root("makes sockets in the kubelet's folder"),
        max_megabytes: 30,
    },
    Recipe {
        name: "validator",
        binaries: &[Binary {
            package: "validator",
            path: "/usr/bin/validator",
            linking: Linking::Static,
        }],
        user: User::Nobody,
        max_megabytes: 30,
    },
    Recipe {
        name: "storage-csi",
        binaries: &[Binary {
            package: "storage-csi",
            path: "/usr/bin/storage-csi",
            linking: Linking::Static,
        }],
        user: User::Root("mounts file systems, and keeps data in folders that the kubelet makes"),
        max_megabytes: 30,
    },
];

pub(crate) const PUBLISHED: &[Published] = &[
    Published {
        program: ETCD,
        path: "/usr/local/bin/etcd",
        max_megabytes: 40,
    },
    Published {
        program: CSI_PROVISIONER,
        path: "/csi-provisioner",
        max_megabytes: 80,
    },
];

impl Published {
    /// The image, from the programs that were built.
    pub(crate) fn image(&self, tools: &Tools) -> anyhow::Result<Image> {
        let config = ImageConfig {
            reference: reference(self.program.name()),
            entrypoint: vec![self.path.to_owned()],
            environment: vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()],
            user: Some(NOBODY),
        };
        let entries = vec![Entry::File {
            path: self.path.to_owned(),
            source: tools.program(self.program.name())?,
            mode: 0o755,
        }];
        Ok(Image { config, entries })
    }
}

impl User {
    /// Numeric, so that Kubernetes can see that it is not root.
    pub(crate) fn id(self) -> Option<u32> {
        match self {
            Self::Nobody => Some(NOBODY),
            Self::Root(_) => None,
        }
    }
}

impl Recipe {
    /// What a container of the image runs.
    pub(crate) fn entrypoint(&self) -> Vec<String> {
        self.binaries
            .iter()
            .take(1)
            .map(|binary| binary.path.to_owned())
            .collect()
    }

    /// The program that loads libraries, if one does.
    pub(crate) fn dynamic(&self) -> Option<&Binary> {
        let mut binaries = self.binaries.iter();
        binaries.find(|binary| binary.linking == Linking::Dynamic)
    }

    /// The image, from the programs in `folder` and the libraries that they need.
    pub(crate) fn image(&self, folder: &Path, libraries: &[Entry]) -> Image {
        let programs = self.binaries.iter().map(|binary| Entry::File {
            path: binary.path.to_owned(),
            source: folder.join(binary.package),
            mode: 0o755,
        });
        let config = ImageConfig {
            reference: reference(self.name),
            entrypoint: self.entrypoint(),
            environment: vec!["PATH=/usr/bin".to_owned()],
            user: self.user.id(),
        };
        Image {
            config,
            entries: programs.chain(libraries.iter().cloned()).collect(),
        }
    }
}

/// What the dynamic programs load where there is RDMA, as Debian calls it: the library of verbs and what it needs, and
/// what it knows devices by.
pub(crate) const VERBS_PACKAGES: [&str; 4] = [
    "libibverbs1",
    "ibverbs-providers",
    "libnl-3-200",
    "libnl-route-3-200",
];

/// The trainer's base: a Debian with a real PyTorch that needs no GPU. The wheel and the examples
/// come on top.
pub(crate) const TRAINER_SUITE: &str = "trixie";
pub(crate) const TRAINER_PACKAGES: &[&str] = &["python3-torch", "python3-numpy", "python3-sklearn"];
/// What running Python programs does not need: manuals, translations, tests of the packages,
/// another language. 330 MB.
pub(crate) const TRAINER_TRIMMED: &[&str] = &[
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/locale",
    "/usr/share/info",
    "/usr/share/perl",
    "/usr/lib/*/perl",
    "/usr/lib/*/perl-base",
    "/usr/lib/libtorch-test",
    "/usr/lib/python3/dist-packages/networkx/*tests",
    "/usr/lib/python3/dist-packages/scipy/*tests",
    "/usr/lib/python3/dist-packages/sklearn/*tests",
    "/usr/lib/python3/dist-packages/sympy/*tests",
    "/usr/lib/python3/dist-packages/torch/bin/*[tT]est*",
    "/usr/lib/python3/dist-packages/torch/bin/tutorial_*",
    "/usr/include",
    "/var/cache",
    "/var/lib/apt",
    "/var/log",
];
/// What builds our wheel, as pip takes it.
pub(crate) const MATURIN: &str = "maturin>=1,<2";
/// Where Debian's Python looks for packages that Debian installed, and now for ours.
pub(crate) const TRAINER_SITE: &str = "/usr/lib/python3/dist-packages";
pub(crate) const TRAINER_EXAMPLES: &str = "/opt/fireflyer/examples";
/// What every program in the trainer's image finds in its environment.
pub(crate) const TRAINER_ENVIRONMENT: [&str; 6] = [
    "PATH=/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONUNBUFFERED=1",
    // The user has no entry in /etc/passwd; libraries ask for a name and a home all the same.
    "USER=fireflyer",
    "HOME=/tmp",
    // Debian builds torch without libuv, and torch does not notice by itself.
    "USE_LIBUV=0",
];

#[cfg(test)]
mod tests {
    use std::fs;

    use cluster::chart;

    use super::IMAGES;
    use crate::r#gen::root;

    /// Panics unwind, so that a thread's would go unnoticed.
    #[test]
    fn every_program_ends_with_the_first_panic_of_a_thread() {
        let programs = IMAGES.iter().flat_map(|recipe| recipe.binaries);
        for program in programs.map(|binary| binary.package) {
            let main = fs::read_to_string(root().join(program).join("src/main.rs")).unwrap();
            let (_, body) = main.split_once("fn main()").unwrap();
            let mut lines = body.lines().skip(1).map(str::trim);
            let first = lines.find(|line| !line.starts_with("//"));
            assert!(
                first.is_some_and(|line| line.contains("end_process")),
                "{program}"
            );
        }
    }

    #[test]
    fn every_image_of_ours_reaches_the_nodes_of_a_cluster() {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        let built = readme
            .lines()
            .find_map(|line| line.strip_prefix("for image in ")?.strip_suffix("; do"))
            .unwrap();
        for image in IMAGES {
            let name = image.name;
            assert!(
                chart::IMAGES.contains(&name),
                "the test cluster gets no image {name}"
            );
            assert!(
                built.split(' ').any(|word| word == name),
                "the README builds no image {name}"
            );
        }
    }
}
