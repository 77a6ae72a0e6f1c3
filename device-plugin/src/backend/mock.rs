//! The backend for machines without hardware: a node fixture read from a file and followed while it
//! changes. Each device becomes a small file on the host that containers see mounted, where real
//! hardware has a device node.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use topology::node::{Gpu, Hardware, Hca};

use super::fixture::{self, Fixture};
use super::{Error, HardwareBackend, Inventory, Mount};
use crate::folder::Folder;

/// Where containers see the devices they were given.
pub const CONTAINER_FOLDER: &str = "/dev/fireflyer";

/// Follows a fixture file.
#[derive(Debug)]
pub struct Mock {
    fixture: PathBuf,
    /// The fixture of this node alone, where there is one.
    own_fixture: Option<PathBuf>,
    device_folder: PathBuf,
    folder: Folder,
}

impl Mock {
    /// Follows the fixture in this file; device files go to the host's folder given. A file beside
    /// it that is called after the node, `NODE.yaml`, goes first while it is there.
    pub fn new(
        fixture: PathBuf,
        node: Option<&str>,
        device_folder: PathBuf,
    ) -> Result<Self, Error> {
        // Editors and the kubelet replace the file instead of writing it, so the folder is watched.
        let parent = match fixture.parent() {
            Some(parent) if parent != Path::new("") => parent,
            Some(_) | None => Path::new("."),
        };
        let folder = Folder::watch(parent)?;
        Ok(Self {
            own_fixture: node.map(|node| parent.join(format!("{node}.yaml"))),
            fixture,
            device_folder,
            folder,
        })
    }

    fn read(&self) -> Result<Fixture, Error> {
        let own = self.own_fixture.as_ref().filter(|own| own.exists());
        let path = own.unwrap_or(&self.fixture);
        let unreadable = |source| Error::Read {
            path: path.clone(),
            source,
        };
        let refused = |problem| Error::Fixture {
            path: path.clone(),
            problem,
        };
        let file = fs::File::open(path).map_err(unreadable)?;
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

impl HardwareBackend for Mock {
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
            let mount = self.render(&format!("gpu{}", gpu.minor), &gpu_text(&node, index, gpu))?;
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

fn gpu_text(node: &Hardware, index: usize, gpu: &Gpu) -> String {
    let mut text = format!(
        "index: {index}\nuuid: {}\naddress: \"{}\"\nminor: {}\nnuma: {}\nrootPort: \"{}\"\n",
        gpu.uuid, gpu.address, gpu.minor, gpu.numa, gpu.root_port
    );
    let bridge = |&&(one, other): &&(usize, usize)| one == index || other == index;
    if let Some(&(one, other)) = node.nvlinks().iter().find(bridge) {
        let partner = &node.gpus()[if one == index { other } else { one }];
        // By its UUID: a container counts the GPUs it was given its own way.
        text += &format!("nvlink: {}\n", partner.uuid);
    }
    text
}

fn hca_text(hca: &Hca) -> String {
    format!(
        "name: {}\nport: {}\nguid: \"{}\"\nrateGbps: {}\nnuma: {}\nrootPort: \"{}\"\n\
         relaxedOrdering: {}\nslots: {}\n",
        hca.name,
        hca.port,
        hca.guid,
        hca.rate_gbps,
        hca.numa,
        hca.root_port,
        hca.relaxed_ordering,
        hca.slots
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

    const NODE: &str = include_str!("../../../e2e/fixtures/node-a100.yaml");

    /// What the backend makes of a fixture, in a folder that holds its device files.
    fn discovered(fixture: &str) -> (tempfile::TempDir, Inventory) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.yaml");
        fs::write(&file, fixture).unwrap();
        let mut mock = Mock::new(file, None, folder.path().join("devices")).unwrap();
        let inventory = mock.discover().unwrap();
        (folder, inventory)
    }

    #[tokio::test]
    async fn each_device_becomes_a_file() {
        let (folder, inventory) = discovered(NODE);
        let devices = folder.path().join("devices");
        let mount = &inventory.access["GPU-00000000-0000-4000-a100-000000000005"][0];
        assert_eq!(mount.container, Path::new("/dev/fireflyer/gpu5"));
        assert_eq!(mount.host, devices.join("gpu5"));
        assert_eq!(
            inventory.access["mlx5_0"][0].container,
            Path::new("/dev/fireflyer/mlx5_0-1")
        );
        assert_eq!(fs::read_dir(&devices).unwrap().count(), 9);
    }

    #[tokio::test]
    async fn a_file_tells_all_the_fixture_says_of_its_device() {
        let (folder, _) = discovered(NODE);
        let text = |name| fs::read_to_string(folder.path().join("devices").join(name)).unwrap();
        assert_eq!(
            text("gpu5"),
            r#"index: 5
uuid: GPU-00000000-0000-4000-a100-000000000005
address: "0000:a1:00.0"
minor: 5
numa: 1
rootPort: "0000:a0:01.1"
nvlink: GPU-00000000-0000-4000-a100-000000000004
"#
        );
        let bridged = "nvlink: GPU-00000000-0000-4000-a100-000000000005\n";
        assert!(text("gpu4").ends_with(bridged), "{}", text("gpu4"));
        assert_eq!(
            text("mlx5_0-1"),
            r#"name: mlx5_0
port: 1
guid: "b859:9f03:00d4:1c2a"
rateGbps: 200
numa: 0
rootPort: "0000:60:01.1"
relaxedOrdering: true
slots: 8
"#
        );
    }

    #[tokio::test]
    async fn a_gpu_without_a_bridge_names_no_partner() {
        let (folder, _) = discovered(&NODE.replace("- [4, 5]\n", ""));
        let text = fs::read_to_string(folder.path().join("devices/gpu5")).unwrap();
        assert!(!text.contains("nvlink"), "{text}");
    }

    #[tokio::test]
    async fn the_fixture_of_the_node_itself_goes_first_while_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.yaml");
        let own = folder.path().join("n7.yaml");
        fs::write(&file, NODE).unwrap();
        let mut mock = Mock::new(file, Some("n7"), folder.path().join("devices")).unwrap();
        let lost = "faults: [{device: mlx5_0, reason: link down}]";
        fs::write(&own, NODE.replace("faults: []", lost)).unwrap();
        assert_eq!(mock.discover().unwrap().faults.len(), 1);
        fs::remove_file(&own).unwrap();
        assert_eq!(mock.discover().unwrap().faults.len(), 0);
    }

    #[tokio::test]
    async fn a_file_that_is_no_fixture_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = folder.path().join("node.yaml");
        let mut mock = Mock::new(fixture.clone(), None, folder.path().join("devices")).unwrap();
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
