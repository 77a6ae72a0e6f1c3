//! The network of a cluster: one namespace holds a bridge, one is the control plane's, one is each
//! node's, all joined by veth pairs that are made inside them. The machine's own namespace gets no
//! interface, address or route.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command;
use crate::error::{Error, Result};
use crate::layout::{Layout, Name};

/// The interface of the control plane or a node.
pub(crate) const INTERFACE: &str = "eth0";
const NAMESPACES: &str = "/run/netns";

/// Makes the namespaces of the switch and the control plane and joins them.
pub(crate) fn create(layout: &Layout) -> Result<()> {
    let (switch, control) = (layout.switch_namespace(), layout.control_namespace());
    ip(&["netns", "add", &switch])?;
    ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
    ip(&["-n", &switch, "link", "set", "bridge", "up"])?;
    join(
        layout,
        &control,
        "control",
        &format!("{}/24", layout.control_address()),
    )?;
    // The control plane is every node's default route, so it forwards.
    forward(&control)
}

/// Makes the namespace of a node, with routes to the pods of the `others` and from the control
/// plane to its own.
pub(crate) fn add_node(layout: &Layout, number: usize, nodes: usize) -> Result<()> {
    let namespace = layout.node_namespace(number);
    let address = layout.node_address(number).to_string();
    join(layout, &namespace, &port(number), &format!("{address}/24"))?;
    // Without a default route the kernel refuses a ClusterIP before kube-proxy's rules see it.
    let control = layout.control_address().to_string();
    let mut routes = format!("route add default via {control}\n");
    for other in (1..=nodes).filter(|other| *other != number) {
        routes += &format!(
            "route add {} via {}\n",
            layout.node_pods(other),
            layout.node_address(other)
        );
    }
    batch(&namespace, &routes)?;
    let route = format!("route add {} via {address}\n", layout.node_pods(number));
    batch(&layout.control_namespace(), &route)?;
    forward(&namespace)
}

/// Cuts a node off, or joins it again: the cable, not the machine.
pub(crate) fn connect(layout: &Layout, number: usize, connected: bool) -> Result<()> {
    let state = if connected { "up" } else { "down" };
    ip(&[
        "-n",
        &layout.switch_namespace(),
        "link",
        "set",
        &port(number),
        state,
    ])
}

/// The cluster's namespaces that exist, also those of a crashed run that kept no state.
pub(crate) fn namespaces(name: &Name) -> Vec<String> {
    let prefix = name.prefix();
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|namespace| namespace.starts_with(&prefix))
        .collect()
}

/// Removes a namespace; its interfaces go with it.
pub(crate) fn remove(namespace: &str) -> Result<()> {
    ip(&["netns", "del", namespace])
}

/// The file that represents a namespace.
pub(crate) fn path(namespace: &str) -> PathBuf {
    PathBuf::from(NAMESPACES).join(namespace)
}

/// A command that runs a program inside a namespace. Not `ip netns exec`, which would hide the
/// cgroups behind a new /sys.
pub(crate) fn inside(namespace: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(namespace).display()));
    command
}

fn port(number: usize) -> String {
    format!("node{number}")
}

fn join(layout: &Layout, namespace: &str, port: &str, address: &str) -> Result<()> {
    let switch = layout.switch_namespace();
    ip(&["netns", "add", namespace])?;
    let pair = format!(
        "link add {port} type veth peer name {INTERFACE} netns {namespace}\nlink set {port} master bridge up\n"
    );
    batch(&switch, &pair)?;
    let interface =
        format!("link set lo up\naddr add {address} dev {INTERFACE}\nlink set {INTERFACE} up\n");
    batch(namespace, &interface)
}

fn forward(namespace: &str) -> Result<()> {
    let script = "echo 1 > /proc/sys/net/ipv4/ip_forward";
    command::run(inside(namespace).args(["sh", "-c", script])).map(|_| ())
}

fn ip(arguments: &[&str]) -> Result<()> {
    command::run(Command::new("ip").args(arguments)).map(|_| ())
}

fn batch(namespace: &str, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["-n", namespace, "-batch", "-"]);
    match command::run_with_input(&mut command, lines.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::new(format!("{error}, given:\n{lines}"))),
    }
}
