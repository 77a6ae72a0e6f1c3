//! The Containerfiles, for people who build images with Docker or buildah: made from the table,
//! committed beside the component, compared by `--check`.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::table::{
    IMAGES, Linking, MATURIN, NOBODY, Recipe, TRAINER_ENVIRONMENT, TRAINER_EXAMPLES,
    TRAINER_PACKAGES, TRAINER_SITE, TRAINER_SUITE, TRAINER_TRIMMED, User, VERBS_PACKAGES,
};
use crate::r#gen::root;

const HEADER: &str =
    "# Made by `cargo xtask images --containerfiles`; change xtask/src/images/table.rs instead.";

const BASES: &str = "# What a tag names may change: --build-arg RUST=rust@sha256:... builds on what you have looked at.";

/// The toolchain of this clone.
const TOOLCHAIN: &str = include_str!("../../../rust-toolchain.toml");

/// The exact version that the toolchain file asks for: a base image of another one would have to
/// download it.
fn rust() -> &'static str {
    let line = TOOLCHAIN
        .lines()
        .find_map(|line| line.strip_prefix("channel = "));
    line.unwrap_or_default().trim_matches('"')
}

/// The line of the base image with Debian, behind another one.
fn debian_argument() -> String {
    format!("\nARG DEBIAN=debian:{TRAINER_SUITE}-slim")
}

/// Each Containerfile by its path in the clone.
fn all() -> Vec<(String, String)> {
    let rust = rust();
    let mut files: Vec<_> = IMAGES
        .iter()
        .map(|recipe| {
            (
                format!("{}/Containerfile", recipe.name),
                of_recipe(recipe, rust),
            )
        })
        .collect();
    files.push(("python/Containerfile".to_owned(), of_trainer(rust)));
    files
}

/// Writes them, or compares what is there.
pub(crate) fn write_all(check: bool) -> anyhow::Result<ExitCode> {
    for (path, text) in all() {
        let file = root().join(&path);
        if !check {
            fs::write(&file, text).with_context(|| format!("failed to write {path}"))?;
        } else if fs::read_to_string(&file).unwrap_or_default() != text {
            bail!("{path} is not what the table says: run `cargo xtask images --containerfiles`");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn of_recipe(recipe: &Recipe, rust: &str) -> String {
    let linked = |linking| {
        let binaries = recipe.binaries.iter();
        let binaries = binaries.filter(move |binary| binary.linking == linking);
        binaries.map(|binary| binary.package).collect::<Vec<_>>()
    };
    let packages = linked(Linking::Static);
    let programs = recipe.binaries.iter().map(|binary| match binary.linking {
        Linking::Static => format!("target/image/release/{}", binary.package),
        Linking::Dynamic => format!("target/release/{}", binary.package),
    });
    let programs: Vec<_> = programs.collect();
    // Linked with the C library that it finds in its own image.
    let (suite, dynamic, argument, base) = match recipe.dynamic() {
        None => (
            String::new(),
            String::new(),
            String::new(),
            "scratch".to_owned(),
        ),
        Some(_) => (
            format!("-{TRAINER_SUITE}"),
            format!(
                "\n# Dynamic, because they load libraries.\nRUN cargo build --release --locked --package {}",
                linked(Linking::Dynamic).join(" --package ")
            ),
            debian_argument(),
            format!(
                "${{DEBIAN}}\nRUN apt-get update \\\n && apt-get install --yes \
                 --no-install-recommends {} \\\n && rm -rf /var/lib/apt/lists",
                VERBS_PACKAGES.join(" ")
            ),
        ),
    };
    let copies: Vec<_> = recipe
        .binaries
        .iter()
        .map(|binary| format!("COPY --from=build /out/{} {}", binary.package, binary.path))
        .collect();
    let user = match recipe.user {
        User::Nobody => format!("USER {NOBODY}:{NOBODY}\n"),
        User::Root(why) => format!("# Root, because it {why}.\n"),
    };
    let entrypoint = recipe.entrypoint().join("\", \"");
    format!(
        "{HEADER}
# From the root of the clone: docker build --file {name}/Containerfile .
{BASES}
ARG RUST=rust:{rust}{suite}{argument}
FROM ${{RUST}} AS build
# What rust-toolchain.toml asks for besides, a build does not need.
ENV RUSTUP_TOOLCHAIN={rust}
WORKDIR /src
COPY . .{dynamic}
# The programs need no library at run time. Naming a target keeps the flag away from build scripts.
RUN host=\"$(rustc -vV | sed -n 's/^host: //p')\" \\
 && RUSTFLAGS=\"-C target-feature=+crt-static\" cargo build --release --locked --target \"$host\" \\
      --package {packages} \\
 && mkdir /out && ln -s \"$host\" target/image && cp {programs} /out/

FROM {base}
{copies}
ENV PATH=/usr/bin
{user}ENTRYPOINT [\"{entrypoint}\"]
",
        name = recipe.name,
        packages = packages.join(" --package "),
        programs = programs.join(" "),
        copies = copies.join("\n"),
    )
}

fn of_trainer(rust: &str) -> String {
    format!(
        "{HEADER}
# From the root of the clone: docker build --file python/Containerfile . Any image with PyTorch will
# do instead of this base: the wheel and the example are all that is ours.
{BASES}
ARG RUST=rust:{rust}{argument}
FROM ${{RUST}} AS build
ENV RUSTUP_TOOLCHAIN={rust}
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv
RUN python3 -m venv /venv && /venv/bin/pip install \"{MATURIN}\"
WORKDIR /src
COPY . .
RUN /venv/bin/maturin build --release --locked --manifest-path python/Cargo.toml --out /wheel \\
 && python3 -m zipfile --extract /wheel/*.whl /site

FROM ${{DEBIAN}}
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends {packages} \\
 && rm -rf {trimmed}
COPY --from=build /site {TRAINER_SITE}
COPY examples {TRAINER_EXAMPLES}
ENV {environment}
USER {NOBODY}:{NOBODY}
ENTRYPOINT [\"/usr/bin/python3\"]
",
        argument = debian_argument(),
        packages = TRAINER_PACKAGES.join(" "),
        trimmed = TRAINER_TRIMMED.join(" \\\n      "),
        environment = TRAINER_ENVIRONMENT.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::{all, write_all};

    #[test]
    fn the_committed_containerfiles_are_fresh() {
        write_all(true).unwrap();
    }

    #[test]
    fn every_base_can_be_held_by_a_digest() {
        for (path, text) in all() {
            let arguments = |line: &str| line.strip_prefix("ARG ").map(str::to_owned);
            let arguments: Vec<_> = text.lines().filter_map(arguments).collect();
            for base in text.lines().filter_map(|line| line.strip_prefix("FROM ")) {
                let argument = base
                    .strip_prefix("${")
                    .and_then(|base| base.split_once('}'));
                let is_given = argument.is_some_and(|(name, _)| {
                    let default = format!("{name}=");
                    arguments
                        .iter()
                        .any(|argument| argument.starts_with(&default))
                });
                assert!(is_given || base == "scratch", "{path}: {base}");
            }
        }
    }

    #[test]
    fn every_program_is_copied_and_who_is_root_says_why() {
        for (path, text) in all() {
            assert!(text.contains("COPY --from=build "), "{path}");
            assert!(text.contains("\nARG RUST=rust:1."), "{path}");
            assert_ne!(
                text.contains("\nUSER 65532:65532\n"),
                text.contains("\n# Root, because it "),
                "{path}"
            );
        }
    }
}
