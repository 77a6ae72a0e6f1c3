//! Keys, certificates and kubeconfigs of a cluster: its own CA, one identity for each component,
//! made by openssl.

use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::error::{ErrorContext, Result};

/// Long enough that a cluster outlives anybody's patience, short enough to be no standing key.
const VALID_DAYS: &str = "365";

/// The folder with the certificates of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    folder: PathBuf,
}

/// What a certificate says.
#[derive(Debug)]
pub(crate) struct Identity<'a> {
    /// The name of its files.
    pub(crate) file: &'a str,
    /// An openssl subject: `/O=system:masters/CN=admin`.
    pub(crate) subject: &'a str,
    /// Where it serves: `DNS:localhost,IP:127.0.0.1`; empty when it does not.
    pub(crate) names: &'a str,
}

impl Pki {
    /// Makes a CA and the keys that sign service account tokens.
    pub(crate) fn create(folder: PathBuf) -> Result<Self> {
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder)
            .context(|| format!("failed to make {}", folder.display()))?;
        let pki = Self { folder };
        pki.openssl(&[
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            "ca.key",
        ])?;
        let extensions = [
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign,cRLSign",
        ];
        let mut request = vec!["req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt"];
        request.extend(["-subj", "/CN=fireflyer-cluster", "-days", VALID_DAYS]);
        for extension in extensions {
            request.extend(["-addext", extension]);
        }
        pki.openssl(&request)?;
        pki.openssl(&["genrsa", "-out", "sa.key", "2048"])?;
        pki.openssl(&["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"])?;
        Ok(pki)
    }

    /// The certificates that an earlier run made.
    pub(crate) fn open(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Makes `FILE.key` and `FILE.crt`, signed by the CA.
    pub(crate) fn issue(&self, identity: &Identity<'_>) -> Result<()> {
        let Identity {
            file,
            subject,
            names,
        } = *identity;
        let (key, request, certificate, extensions) = (
            format!("{file}.key"),
            format!("{file}.csr"),
            format!("{file}.crt"),
            format!("{file}.ext"),
        );
        let mut lines = vec![
            "basicConstraints=critical,CA:FALSE".to_owned(),
            "keyUsage=critical,digitalSignature".to_owned(),
            "extendedKeyUsage=clientAuth,serverAuth".to_owned(),
        ];
        if !names.is_empty() {
            lines.push(format!("subjectAltName={names}"));
        }
        let path = self.path(&extensions);
        fs::write(&path, lines.join("\n"))
            .context(|| format!("failed to write {}", path.display()))?;
        self.openssl(&[
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            &key,
        ])?;
        self.openssl(&[
            "req", "-new", "-key", &key, "-subj", subject, "-out", &request,
        ])?;
        let serial = format!("0x{}", random_serial()?);
        let mut sign = vec![
            "x509", "-req", "-in", &request, "-CA", "ca.crt", "-CAkey", "ca.key",
        ];
        sign.extend([
            "-set_serial",
            &serial,
            "-days",
            VALID_DAYS,
            "-extfile",
            &extensions,
        ]);
        sign.extend(["-out", &certificate]);
        self.openssl(&sign)?;
        for leftover in [request, extensions] {
            let _ = fs::remove_file(self.path(&leftover));
        }
        Ok(())
    }

    /// Writes a kubeconfig for an identity beside its files, which it names relatively, and returns
    /// its path.
    pub(crate) fn kubeconfig(&self, file: &str, server: &str) -> Result<PathBuf> {
        let path = self.path(&format!("{file}.kubeconfig"));
        fs::write(&path, kubeconfig(file, server, ""))
            .context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    /// Writes the administrator's kubeconfig one folder up, where people look for it.
    pub(crate) fn admin_kubeconfig(&self, path: &Path, server: &str) -> Result<()> {
        let folder = self
            .folder
            .file_name()
            .map(|name| name.to_string_lossy())
            .unwrap_or_default();
        fs::write(path, kubeconfig("admin", server, &format!("{folder}/")))
            .context(|| format!("failed to write {}", path.display()))
    }

    fn openssl(&self, arguments: &[&str]) -> Result<()> {
        command::run(
            Command::new("openssl")
                .current_dir(&self.folder)
                .args(arguments),
        )
        .map(|_| ())
    }
}

fn kubeconfig(user: &str, server: &str, folder: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: fireflyer
  cluster:
    server: {server}
    certificate-authority: {folder}ca.crt
users:
- name: {user}
  user:
    client-certificate: {folder}{user}.crt
    client-key: {folder}{user}.key
contexts:
- name: fireflyer
  context:
    cluster: fireflyer
    user: {user}
current-context: fireflyer
"
    )
}

/// Fifteen random bytes: certificates are signed in parallel, so no counter in a file.
fn random_serial() -> Result<String> {
    let mut bytes = [0_u8; 15];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.context(|| "failed to read random bytes".to_owned())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
