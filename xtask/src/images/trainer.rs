//! The trainer's image: a Debian root with PyTorch as the lower layer, kept as long as the list of
//! packages stays the same, and our wheel with the examples as the upper one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use cluster::image::{
    ImageConfig, forget_others, images_folder, reference, short_key, write_archive,
};
use cluster::{StepOutcome, command, digest, paths};

use super::table::{
    MATURIN, NOBODY, TRAINER_ENVIRONMENT, TRAINER_EXAMPLES, TRAINER_PACKAGES, TRAINER_SITE,
    TRAINER_SUITE, TRAINER_TRIMMED,
};
use crate::r#gen::root;
use crate::{cargo, child, report};

/// Where apt keeps the machine's mirrors.
const APT_SOURCES: [&str; 2] = ["/etc/apt/sources.list.d", "/etc/apt"];

/// The image's archive, made of its base and our wheel.
pub(crate) fn build(base: &Path) -> anyhow::Result<(PathBuf, StepOutcome)> {
    let wheel = wheel()?;
    let layer = images_folder()?.join(format!("trainer.{}.layer", std::process::id()));
    let built = with_layer(base, &wheel, &layer);
    // Small, and perhaps never made: what went wrong above is the news.
    let _ = fs::remove_file(&layer);
    built
}

/// Packs the upper layer into `layer`, and both into the archive.
fn with_layer(base: &Path, wheel: &Path, layer: &Path) -> anyhow::Result<(PathBuf, StepOutcome)> {
    pack_layer(wheel, layer)?;
    let config = ImageConfig {
        reference: reference("trainer"),
        entrypoint: vec!["/usr/bin/python3".to_owned()],
        environment: TRAINER_ENVIRONMENT.map(str::to_owned).to_vec(),
        user: Some(NOBODY),
    };
    // The base's name contains a digest of its recipe.
    let content = format!("{config:?} {:?} {}", base.file_name(), digest::file(layer)?);
    let key = short_key(content.as_bytes())?;
    let archive = images_folder()?.join(format!("trainer-{key}.tar"));
    if archive.exists() {
        return Ok((archive, StepOutcome::Cached));
    }
    write_archive(
        &archive,
        &config,
        &[base.to_path_buf(), layer.to_path_buf()],
    )?;
    forget_others(&archive, "trainer")?;
    Ok((archive, StepOutcome::Built))
}

/// The Debian root as a layer, made by mmdebstrap from the mirror that this machine itself uses, if
/// it is one of Debian's.
pub(crate) fn base() -> anyhow::Result<PathBuf> {
    let start = Instant::now();
    report::begin("trainer base");
    let recipe = format!("{TRAINER_SUITE} {TRAINER_PACKAGES:?} {TRAINER_TRIMMED:?}");
    let folder = cache()?;
    let _alone = lock(&folder)?;
    let key = short_key(recipe.as_bytes())?;
    let layer = folder.join(format!("base-{key}.tar"));
    let outcome = if layer.exists() {
        StepOutcome::Cached
    } else {
        let whole = folder.join(format!("whole-{key}.tar"));
        if !whole.exists() {
            let fresh = folder.join("fresh.tar");
            let mut debian = Command::new("mmdebstrap");
            debian.args([
                "--variant=minbase",
                "--include",
                &TRAINER_PACKAGES.join(","),
            ]);
            debian.arg(TRAINER_SUITE).arg(&fresh).args(mirror());
            command::run(&mut debian)?;
            fs::rename(&fresh, &whole).context("failed to keep the root")?;
        }
        trim(&whole, &layer)?;
        forget_other_bases(&folder, &layer);
        StepOutcome::Built
    };
    report::line("trainer base", outcome, start.elapsed());
    Ok(layer)
}

/// Removes what another list of packages gave, a gigabyte each, and what this one was made from.
fn forget_other_bases(folder: &Path, layer: &Path) {
    for path in fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path != layer && (name.starts_with("base-") || name.starts_with("whole-")) {
            // It is only room: what cannot be removed now is removed the next time.
            let _ = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
        }
    }
}

/// Where the base and the wheel are kept.
fn cache() -> anyhow::Result<PathBuf> {
    let folder = paths::cache()?.join("trainer");
    fs::create_dir_all(&folder).context("failed to make the trainer's cache")?;
    Ok(folder)
}

/// One builder at a time, until the returned file is dropped.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let file = File::open(folder).context("failed to open the trainer's cache")?;
    file.lock().context("failed to lock the trainer's cache")?;
    Ok(file)
}

/// Copies a root without what is not needed.
fn trim(whole: &Path, layer: &Path) -> anyhow::Result<()> {
    let folder = layer.with_extension("trim");
    let fresh = layer.with_extension("new");
    fs::create_dir_all(&folder).context("failed to make a folder for the root")?;
    let mut unpack = Command::new("tar");
    unpack
        .arg("--extract")
        .arg("--file")
        .arg(whole)
        .arg("--directory")
        .arg(&folder);
    // Device nodes: containers get their own.
    unpack.args(["--numeric-owner", "--wildcards", "--exclude=./dev/*"]);
    unpack.args(
        TRAINER_TRIMMED
            .iter()
            .map(|path| format!("--exclude=.{path}")),
    );
    command::run(&mut unpack)?;
    // The times of files stay: a compiled Python module is used only while its source has the time
    // that it names, and PyTorch takes seconds to compile at each start.
    let mut pack = tar(&fresh);
    pack.arg("--directory").arg(&folder).arg(".");
    command::run(&mut pack)?;
    fs::rename(&fresh, layer).context("failed to keep the trainer's base")?;
    fs::remove_dir_all(&folder).context("failed to remove the unpacked root")
}

/// The mirror of Debian that this machine's own apt is configured with; where there is none, as on
/// other systems, mmdebstrap knows one.
fn mirror() -> Option<String> {
    for folder in APT_SOURCES {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            let is_source = file
                .extension()
                .is_some_and(|end| end == "sources" || end == "list");
            let text = if is_source {
                fs::read_to_string(&file).unwrap_or_default()
            } else {
                String::new()
            };
            if let Some(mirror) = mirror_in(&text) {
                return Some(mirror);
            }
        }
    }
    None
}

/// The first address of a Debian archive in a `.sources` file or a `sources.list`.
fn mirror_in(text: &str) -> Option<String> {
    let addresses = text.lines().flat_map(|line| match line.split_once(':') {
        Some(("URIs", addresses)) => addresses.split_whitespace().collect::<Vec<_>>(),
        _ if line.starts_with("deb ") => line.split_whitespace().collect(),
        _ => Vec::new(),
    });
    let debian = |address: &&str| {
        address.contains("://") && address.trim_end_matches('/').ends_with("/debian")
    };
    addresses.into_iter().find(debian).map(str::to_owned)
}

/// Builds the wheel with maturin, which lives in an environment of its own in the cache, and
/// unpacks it.
pub(crate) fn wheel() -> anyhow::Result<PathBuf> {
    let start = Instant::now();
    let folder = cache()?;
    let _alone = lock(&folder)?;
    let maturin = maturin()?;
    report::begin("python wheel");
    let wheels = folder.join("wheel");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).context("failed to remove the last wheel")?;
    }
    let mut build = child::command(maturin);
    build
        .current_dir(root())
        .args(["build", "--release", "--locked"]);
    build
        .args(["--manifest-path", "python/Cargo.toml", "--out"])
        .arg(&wheels);
    cargo::run("python wheel", &mut build)?;
    let built = fs::read_dir(&wheels)
        .context("failed to list the wheels")?
        .flatten()
        .next();
    let built = built.context("maturin built no wheel")?.path();
    fits_every_python(&built)?;
    // A folder of its own for each wheel: one that is in use does not change.
    let mut digest = digest::file(&built)?;
    digest.truncate(16);
    let site = folder.join(format!("site-{digest}"));
    let outcome = if site.exists() {
        StepOutcome::Cached
    } else {
        let fresh = folder.join("site.new");
        let mut unpack = Command::new("python3");
        unpack
            .args(["-m", "zipfile", "--extract"])
            .arg(built)
            .arg(&fresh);
        command::run(&mut unpack)?;
        fs::rename(&fresh, &site).context("failed to keep the unpacked wheel")?;
        StepOutcome::Built
    };
    report::line("python wheel", outcome, start.elapsed());
    Ok(site)
}

/// A wheel for one version of Python would install nowhere else, though its tests pass here.
fn fits_every_python(wheel: &Path) -> anyhow::Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    ensure!(
        name.contains("-abi3-"),
        "maturin built {name} for one version of Python only: pyo3 needs its abi3 feature in Cargo.toml"
    );
    Ok(())
}

/// Python's installer.
pub(crate) fn pip() -> anyhow::Result<PathBuf> {
    Ok(maturin()?.with_file_name("pip"))
}

fn maturin() -> anyhow::Result<PathBuf> {
    let environment = paths::cache()?.join("maturin");
    let program = environment.join("bin/maturin");
    if !program.exists() {
        let start = Instant::now();
        report::begin("maturin");
        command::run(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        )?;
        let mut install = Command::new(environment.join("bin/pip"));
        command::run(install.args(["install", "--quiet", MATURIN]))?;
        report::line("maturin", StepOutcome::Built, start.elapsed());
    }
    Ok(program)
}

/// The upper layer: the wheel's files where Python finds them, and the examples.
fn pack_layer(site: &Path, layer: &Path) -> anyhow::Result<()> {
    let stage = layer.with_extension("root");
    if stage.exists() {
        fs::remove_dir_all(&stage).context("failed to remove the last upper layer")?;
    }
    copy_folder(site, &stage.join(TRAINER_SITE.trim_start_matches('/')))?;
    copy_folder(
        &root().join("examples"),
        &stage.join(TRAINER_EXAMPLES.trim_start_matches('/')),
    )?;
    // The same files give the same bytes.
    let mut pack = tar(layer);
    pack.args(["--mtime=@0", "--owner=0", "--group=0", "--mode=u=rwX,go=rX"]);
    pack.arg("--directory").arg(&stage).arg(".");
    command::run(&mut pack)?;
    fs::remove_dir_all(&stage).context("failed to remove the staged upper layer")
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("failed to make {}", to.display()))?;
    let entries =
        fs::read_dir(from).with_context(|| format!("failed to list {}", from.display()))?;
    for entry in entries.flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            let copied = File::open(&source).and_then(|_| fs::copy(&source, &target));
            copied.with_context(|| format!("failed to copy {}", source.display()))?;
        }
    }
    Ok(())
}

fn tar(target: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--numeric-owner",
        "--format=gnu",
        "--file",
    ]);
    tar.arg(target);
    tar
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{fits_every_python, mirror_in};

    #[test]
    fn the_mirror_is_the_first_debian_archive_and_not_its_security_updates() {
        let sources = "Types: deb\nURIs: http://a.example/debian-security\nSuites: x\n\n\
                       Types: deb\n# URIs: http://no.example/debian\nURIs: http://b.example/debian/\n";
        assert_eq!(
            mirror_in(sources).as_deref(),
            Some("http://b.example/debian/")
        );
        let list = "# deb http://no.example/debian x main\ndeb [signed-by=/k] http://c.example/debian x main\n";
        assert_eq!(mirror_in(list).as_deref(), Some("http://c.example/debian"));
        assert_eq!(mirror_in("deb https://other.example/apt x main\n"), None);
    }

    #[test]
    fn a_wheel_for_one_python_only_is_refused_by_its_name() {
        let wheel = |python| format!("wheel/fireflyer-0.1.0-{python}-manylinux_2_34_x86_64.whl");
        assert!(fits_every_python(Path::new(&wheel("cp311-abi3"))).is_ok());
        let refused = fits_every_python(Path::new(&wheel("cp313-cp313"))).unwrap_err();
        assert!(
            refused.to_string().contains("fireflyer-0.1.0-cp313-cp313"),
            "{refused}"
        );
    }
}
