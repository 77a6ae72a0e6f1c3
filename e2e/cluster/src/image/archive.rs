//! The archive that `docker save` would write and `ctr images import` reads: layers, a
//! configuration that names them by digest, a manifest.

use std::env::consts::ARCH;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use super::ImageConfig;
use super::tar::Tar;
use crate::digest;
use crate::error::{ErrorContext, Result};

/// Writes an archive of an image with these layers, lowest first. It appears under its name only
/// when it is whole.
pub fn write(target: &Path, config: &ImageConfig, layers: &[PathBuf]) -> Result<()> {
    let digests = layers
        .iter()
        .map(|layer| digest::file(layer))
        .collect::<Result<Vec<_>>>()?;
    let config_text = config_json(config, &digests);
    let config_name = format!("{}.json", digest::bytes(config_text.as_bytes())?);
    let layer_names: Vec<_> = digests
        .iter()
        .map(|digest| format!("{digest}.tar"))
        .collect();

    let fresh = target.with_extension(format!("{}", std::process::id()));
    let file = File::create(&fresh).context(|| format!("failed to make {}", fresh.display()))?;
    let mut tar = Tar::new(BufWriter::new(file));
    tar.bytes(
        "manifest.json",
        0o644,
        manifest_json(config, &config_name, &layer_names).as_bytes(),
    )?;
    tar.bytes(&config_name, 0o644, config_text.as_bytes())?;
    for (name, layer) in layer_names.iter().zip(layers) {
        tar.file(name, 0o644, layer)?;
    }
    tar.finish()?;
    fs::rename(&fresh, target).context(|| format!("failed to make {}", target.display()))
}

fn config_json(config: &ImageConfig, digests: &[String]) -> String {
    let architecture = match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let user = config
        .user
        .map(|user| format!("{user}:{user}"))
        .unwrap_or_default();
    let layers: Vec<_> = digests
        .iter()
        .map(|digest| format!("sha256:{digest}"))
        .collect();
    format!(
        "{{\"architecture\":{},\"os\":\"linux\",\"config\":{{\"Entrypoint\":{},\"Env\":{},\"User\":{},\
         \"WorkingDir\":\"/\"}},\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":{}}}}}",
        string(architecture),
        strings(&config.entrypoint),
        strings(&config.environment),
        string(&user),
        strings(&layers),
    )
}

fn manifest_json(config: &ImageConfig, config_name: &str, layers: &[String]) -> String {
    format!(
        "[{{\"Config\":{},\"RepoTags\":[{}],\"Layers\":{}}}]",
        string(config_name),
        string(&config.reference),
        strings(layers)
    )
}

fn strings(texts: &[String]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| string(text)).collect();
    format!("[{}]", quoted.join(","))
}

fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::super::ImageConfig;
    use super::{config_json, manifest_json, string};

    fn config() -> ImageConfig {
        ImageConfig {
            reference: "localhost/fireflyer/x:1".into(),
            entrypoint: vec!["/x".into(), "a \"b\"".into()],
            environment: vec!["A=b".into()],
            user: Some(65_532),
        }
    }

    #[test]
    fn the_configuration_names_layers_by_digest_and_the_user_by_number() {
        let text = config_json(&config(), &["ab".into()]);
        assert!(text.contains(r#""diff_ids":["sha256:ab"]"#), "{text}");
        assert!(text.contains(r#""User":"65532:65532""#), "{text}");
        assert!(text.contains(r#""Entrypoint":["/x","a \"b\""]"#), "{text}");
    }

    #[test]
    fn the_manifest_carries_the_full_name() {
        let text = manifest_json(&config(), "c.json", &["l.tar".into()]);
        let expected =
            r#"[{"Config":"c.json","RepoTags":["localhost/fireflyer/x:1"],"Layers":["l.tar"]}]"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(string("a\n\\"), r#""a\u000a\\""#);
    }
}
