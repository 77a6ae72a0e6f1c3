//! The backend for machines without hardware: a node fixture read from a file and followed while it
//! changes. Each device becomes a small file on the host that containers see mounted, where real
//! hardware has a device node.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use topology::node::{Gpu, Hca};

use super::fixture::{self, Fixture};
use super::{Backend, Error, Inventory, Mount};
use crate::folder::Folder;

/// Where containers see the devices they were given.
pub const CONTAINER_FOLDER: &str = "/dev/fireflyer";

/// Follows a fixture file.
#[derive(Debug)]
pub struct Mock {
    fixture: PathBuf,
    device_folder: PathBuf,
    folder: Folder,
}

impl Mock {
    /// Follows the fixture in this file; device files go to the host's folder given.
    pub fn new(fixture: PathBuf, device_folder: PathBuf) -> Result<Self, Error> {
        // Editors and the kubelet replace the file instead of writing it, so the folder is watched.
        let parent = match fixture.parent() {
            Some(parent) if parent != Path::new("") => parent,
            Some(_) | None => Path::new("."),
        };
        let folder = Folder::watch(parent)?;
        Ok(Self {
            fixture,
            device_folder,
            folder,
        })
    }

    fn read(&self) -> Result<Fixture, Error> {
        let unreadable = |source| Error::Read {
            path: self.fixture.clone(),
            source,
        };
        let refused = |problem| Error::Fixture {
            path: self.fixture.clone(),
            problem,
        };
        let file = fs::File::open(&self.fixture).map_err(unreadable)?;
        let mut text = String::new();
        let read = file
            .take(fixture::MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        if read as u64 > fixture::MAX_BYTES {
            return Err(refused(fixture::Error::TooLong));
        }
        text.parse().map_err(refused)
    }

    /// Writes the file of one device and says where containers see it.
    fn render(&self, name: &str, text: &str) -> Result<Mount, Error> {
        let host = self.device_folder.join(name);
        write_if_other(&host, text).map_err(|source| Error::Write {
            path: host.clone(),
            source,
        })?;
        Ok(Mount {
            container: Path::new(CONTAINER_FOLDER).join(name),
            host,
        })
    }
}

impl Backend for Mock {
    fn discover(&mut self) -> Result<Inventory, Error> {
        let Fixture {
            node,
            place,
            faults,
        } = self.read()?;
        fs::create_dir_all(&self.device_folder).map_err(|source| Error::Write {
            path: self.device_folder.clone(),
            source,
        })?;
        let mut access: BTreeMap<String, Vec<Mount>> = BTreeMap::new();
        for (index, gpu) in node.gpus().iter().enumerate() {
            let mount = self.render(&format!("gpu{}", gpu.minor), &gpu_text(index, gpu))?;
            access.insert(gpu.uuid.clone(), vec![mount]);
        }
        for hca in node.hcas() {
            let name = format!("{}-{}", hca.name, hca.port);
            let mount = self.render(&name, &hca_text(hca))?;
            access.entry(hca.name.clone()).or_default().push(mount);
        }
        Ok(Inventory {
            node,
            place,
            faults,
            access,
        })
    }

    async fn changed(&mut self) -> Result<(), Error> {
        Ok(self.folder.changed().await?)
    }
}

fn gpu_text(index: usize, gpu: &Gpu) -> String {
    format!(
        "index: {index}\nuuid: {}\naddress: \"{}\"\nminor: {}\nnuma: {}\n",
        gpu.uuid, gpu.address, gpu.minor, gpu.numa
    )
}

fn hca_text(hca: &Hca) -> String {
    format!(
        "name: {}\nport: {}\nguid: \"{}\"\nrateGbps: {}\nnuma: {}\n",
        hca.name, hca.port, hca.guid, hca.rate_gbps, hca.numa
    )
}

/// A running container has this very file mounted, so it is left alone unless its text changes.
fn write_if_other(path: &Path, text: &str) -> io::Result<()> {
    match fs::read(path) {
        Ok(old) if old == text.as_bytes() => return Ok(()),
        Ok(_) | Err(_) => {}
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_device_becomes_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = folder.path().join("node.yaml");
        fs::write(
            &fixture,
            include_str!("../../../e2e/fixtures/node-a100.yaml"),
        )
        .unwrap();
        let devices = folder.path().join("devices");
        let mut mock = Mock::new(fixture, devices.clone()).unwrap();
        let inventory = mock.discover().unwrap();

        let mount = &inventory.access["GPU-00000000-0000-4000-a100-000000000005"][0];
        assert_eq!(mount.container, Path::new("/dev/fireflyer/gpu5"));
        assert_eq!(mount.host, devices.join("gpu5"));
        let text = fs::read_to_string(&mount.host).unwrap();
        assert!(text.contains("address: \"0000:a1:00.0\""), "{text}");
        assert_eq!(
            inventory.access["mlx5_0"][0].container,
            Path::new("/dev/fireflyer/mlx5_0-1")
        );
        assert_eq!(fs::read_dir(&devices).unwrap().count(), 9);
    }

    #[tokio::test]
    async fn a_file_that_is_no_fixture_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = folder.path().join("node.yaml");
        let mut mock = Mock::new(fixture.clone(), folder.path().join("devices")).unwrap();
        let missing = mock.discover().unwrap_err().to_string();
        assert!(missing.contains("failed to read") && missing.contains("node.yaml"));

        fs::write(&fixture, "gpus: 8\n").unwrap();
        let wrong = mock.discover().unwrap_err().to_string();
        assert!(wrong.contains("node.yaml: gpus: invalid type"), "{wrong}");

        fs::write(&fixture, "#".repeat(300_000)).unwrap();
        let long = mock.discover().unwrap_err().to_string();
        assert!(long.contains("longer than 262144 bytes"), "{long}");
    }
}
