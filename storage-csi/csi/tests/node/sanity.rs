//! csi-sanity, the interface's own tests, against both sockets as they are deployed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cluster::tools::Tools;

use super::kubelet::Node;

/// Where it is, or why it cannot run.
pub(crate) fn program() -> Result<PathBuf, String> {
    let tools = Tools::built().map_err(|error| error.to_string())?;
    tools
        .program("csi-sanity")
        .map_err(|error| error.to_string())
}

pub(crate) fn csi_sanity_finds_nothing() {
    let node = Node::start();
    let folder = node.folder().display().to_string();
    fs::create_dir(node.folder().join("kubelet/sanity")).unwrap();
    let output = Command::new(program().unwrap())
        .arg(format!("--csi.endpoint={folder}/csi.sock"))
        .arg(format!("--csi.controllerendpoint={folder}/controller.sock"))
        .arg(format!("--csi.mountdir={folder}/kubelet/sanity/target"))
        .arg(format!("--csi.stagingdir={folder}/kubelet/sanity/staging"))
        .arg("--ginkgo.no-color")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let counts = text.lines().find(|line| line.contains(" Passed | "));
    println!("csi-sanity: {}", counts.unwrap_or("no counts"));
    let is_clean = output.status.success() && text.contains(" | 0 Failed");
    assert!(
        is_clean,
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(node.mounts(), 0, "nothing is left");
}
