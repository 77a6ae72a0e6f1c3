//! The native cluster itself, on this machine: up, a node lost and back, cut off and back, another
//! cluster beside it after a run that crashed, down without a trace. Ignored by default because it needs root, the tools and
//! most of a minute: `cargo test -p cluster -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::tools::{self, Tools};
use cluster::{
    Cluster, ClusterOptions, Name, NodeEngine, StepOutcome, command, image, list, paths, until,
};

const LIMIT: Duration = Duration::from_secs(60);
/// With its programs built, a cluster of two nodes is up within 20 s; ten times that is the limit.
const UP_LIMIT: Duration = Duration::from_secs(200);

/// The name of the test below, which is also a program that only brings a cluster up, to be killed meanwhile:
/// the variable names the cluster.
const TEST: &str = "a_cluster_comes_up_loses_nodes_gets_them_back_and_leaves_no_trace";
const ONLY_UP: &str = "LIFECYCLE_ONLY_UP";

fn quiet(_: &str, _: StepOutcome, _: Duration) {}

fn ready(cluster: &Cluster, node: &str) -> bool {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    command::run(&mut cluster.kubectl(["get", "node", node, "-o", path]).unwrap()).unwrap()
        == "True"
}

fn wait(cluster: &Cluster, node: &str, wanted: bool) {
    let what = format!("{node} Ready={wanted}");
    until(&what, LIMIT, || {
        Ok((ready(cluster, node) == wanted).then_some(()))
    })
    .unwrap();
}

/// Starts a pod on the node and waits for its phase.
fn pod(cluster: &Cluster, node: &str, pod: &str, program: &[&str], wanted: &str) {
    let image = image::reference("busybox");
    let place = format!(r#"{{"spec":{{"nodeName":"{node}"}}}}"#);
    let run = ["run", pod, "--image", &image, "--restart=Never"];
    let start = || {
        let mut kubectl = cluster.kubectl(run)?;
        kubectl.args(["--overrides", &place, "--command", "--"]);
        command::run(kubectl.args(program))
    };
    // The namespace's service account may be a moment younger than the node.
    until("a pod is accepted", LIMIT, || Ok(start().ok())).unwrap();
    let phase = ["get", "pod", pod, "-o", "jsonpath={.status.phase}"];
    until(&format!("the pod {pod} is {wanted}"), LIMIT, || {
        let phase = command::run(&mut cluster.kubectl(phase)?)?;
        Ok((phase == wanted).then_some(()))
    })
    .unwrap();
}

/// A kubelet's certificate lets it change its own Node alone, no label there that others trust, and read what
/// its own pods need.
fn a_node_is_kept_to_itself(cluster: &Cluster, node: &str, other: &str) {
    let secret = ["create", "secret", "generic", "unrelated"];
    let mut secret = cluster.kubectl(secret).unwrap();
    command::run(secret.arg("--from-literal=a=b")).unwrap();
    let path = format!("/api/v1/nodes/{other}");
    let text = command::run(&mut cluster.kubectl(["get", "--raw", &path]).unwrap()).unwrap();
    let labelled = text.replace(r#""labels":{"#, r#""labels":{"mine":"yes","#);
    assert_ne!(labelled, text);

    let kubeconfig = cluster.control_plane_kubeconfig();
    let kubeconfig = kubeconfig.with_file_name(format!("{node}.kubeconfig"));
    let kubectl = |arguments: &[&str]| {
        let program = cluster.programs().join("kubectl");
        let mut kubectl = cluster.in_control_plane(program).unwrap();
        kubectl.args(arguments).env("KUBECONFIG", &kubeconfig);
        command::run_with_input(&mut kubectl, labelled.as_bytes())
    };
    kubectl(&["label", "node", node, "mine=yes"]).unwrap();
    let trusted = "node-restriction.kubernetes.io/mine=yes";
    let refusals = [
        (
            &["label", "node", node, trusted][..],
            "is not allowed to modify labels",
        ),
        (
            &["replace", "--raw", &path, "-f", "-"][..],
            "is not allowed to modify node",
        ),
        (
            &["get", "secret", "unrelated"][..],
            "no relationship found between node",
        ),
    ];
    for (arguments, expected) in refusals {
        let said = kubectl(arguments).unwrap_err().to_string();
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

/// A process that lives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// With the pid it is one process of all that ever were.
    start: u64,
    parent: u32,
    program: String,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let parse = |folder: PathBuf| {
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let dead = matches!(fields[0], "Z" | "X");
        (!dead).then(|| Process {
            pid,
            start: fields[19].parse().unwrap(),
            parent: fields[1].parse().unwrap(),
            program: head.split_once('(').unwrap().1.to_owned(),
        })
    };
    entries.filter_map(|entry| parse(entry.path())).collect()
}

/// What runs in the cluster's network namespaces, and all that those processes started: pods have network
/// namespaces of their own.
fn processes_of(name: &str) -> Vec<Process> {
    let prefix = format!("ff.{name}.");
    let identity = |path: PathBuf| {
        let file = fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    };
    let namespaces: Vec<_> = fs::read_dir("/run/netns")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .filter_map(|entry| identity(entry.path()))
        .collect();
    let (mut found, mut rest): (Vec<_>, Vec<_>) = processes().into_iter().partition(|process| {
        identity(format!("/proc/{}/ns/net", process.pid).into())
            .is_some_and(|namespace| namespaces.contains(&namespace))
    });
    loop {
        let (children, others): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|process| found.iter().any(|parent| parent.pid == process.parent));
        if children.is_empty() {
            return found;
        }
        found.extend(children);
        rest = others;
    }
}

/// The loopback port of the API server.
fn port(cluster: &Cluster) -> u16 {
    let text = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let (_, rest) = text.split_once("https://127.0.0.1:").unwrap();
    rest.lines().next().unwrap().parse().unwrap()
}

/// Brings a cluster up in a process that is killed as soon as it has written down an API server.
fn crash_on_the_way(name: &Name) {
    let folder = paths::clusters().unwrap().join(name.as_str());
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", TEST])
        .env(ONLY_UP, name.as_str())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let state = || fs::read_to_string(folder.join("state")).unwrap_or_default();
    until("an API server is written down", LIMIT, || {
        Ok(state().contains("process kube-apiserver").then_some(()))
    })
    .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(state().contains("\nowner ") && !state().contains("\nready\n"));
}

/// Everything on this machine that bears the cluster's name.
fn traces(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (prefix, folder) = (format!("ff.{name}."), format!("clusters/{name}/"));
    let list = |path: &Path| {
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let mut parents = vec![PathBuf::from("/run/netns"), PathBuf::from("/sys/fs/cgroup")];
    parents.extend(list(Path::new("/sys/fs/cgroup")));
    for path in parents.iter().flat_map(|parent| list(parent)) {
        let named = path
            .file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
        found.extend(named.then(|| path.display().to_string()));
    }
    let clusters = paths::clusters().unwrap();
    for folder in [name.to_owned(), format!("{name}.removed")] {
        let folder = clusters.join(folder);
        found.extend(folder.exists().then(|| folder.display().to_string()));
    }
    for process in list(Path::new("/proc")) {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        found.extend(line.contains(&folder).then_some(line));
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    found.extend(
        mounts
            .lines()
            .filter(|mount| mount.contains(&folder))
            .map(str::to_owned),
    );
    found
}

#[test]
#[ignore = "needs root and most of a minute"]
fn a_cluster_comes_up_loses_nodes_gets_them_back_and_leaves_no_trace() {
    if let Ok(name) = env::var(ONLY_UP) {
        Cluster::up(
            &ClusterOptions::new(Name::new(&name).unwrap()).nodes(1),
            &quiet,
        )
        .unwrap();
        return;
    }
    let name = Name::new("lifecycle").unwrap();
    let options = ClusterOptions::new(name.clone())
        .nodes(2)
        .zones(&["a", "b"]);
    Tools::build(&tools::of_cluster(NodeEngine::here()), &quiet).unwrap();
    let started = Instant::now();
    let cluster = Cluster::up(&options, &quiet).unwrap();
    let took = started.elapsed();
    println!(
        "two nodes Ready in {:.1} s, their programs built before",
        took.as_secs_f64()
    );
    assert!(took < UP_LIMIT, "{took:?}");
    assert!(cluster.nodes().all(|node| ready(&cluster, node.name())));
    if cluster.engine() == NodeEngine::Kind {
        Cluster::down(&name).unwrap();
        return;
    }
    let (busybox, _) = image::busybox().unwrap().build().unwrap();
    cluster.import(&[busybox], &quiet).unwrap();
    for node in ["lifecycle-1", "lifecycle-2"] {
        pod(&cluster, node, node, &["true"], "Succeeded");
    }
    let lost = "lifecycle-2";
    a_node_is_kept_to_itself(&cluster, "lifecycle-1", lost);
    let node = cluster.node(lost).unwrap();

    // A power cut, and back over the same disk, before the kernel has taken away what pods had.
    let left = ["veth0123abcd", "type", "veth", "peer", "name", "inpod"];
    node.run(&[&["ip", "link", "add"][..], &left].concat())
        .unwrap();
    node.kill().unwrap();
    assert!(!node.alive().unwrap());
    wait(&cluster, lost, false);
    assert!(ready(&cluster, "lifecycle-1"));
    node.restart().unwrap();
    wait(&cluster, lost, true);
    let images = node
        .run(&["ctr", "--namespace", "k8s.io", "images", "ls", "-q"])
        .unwrap();
    assert!(images.contains("fireflyer/busybox"), "{images}");
    let links = node.run(&["ip", "-o", "link"]).unwrap();
    assert!(!links.contains(left[0]), "{links}");

    // A cut cable: what runs there runs on.
    let boot = node.run(&["cat", "/proc/1/stat"]).unwrap();
    let start = |stat: &str| stat.split(' ').nth(21).map(str::to_owned);
    node.partition().unwrap();
    wait(&cluster, lost, false);
    node.heal().unwrap();
    wait(&cluster, lost, true);
    assert_eq!(
        start(&node.run(&["cat", "/proc/1/stat"]).unwrap()),
        start(&boot)
    );

    // The kubelet comes back by itself: its lease goes on.
    let lease = [
        "get",
        "lease",
        lost,
        "-n",
        "kube-node-lease",
        "-o",
        "jsonpath={.spec.renewTime}",
    ];
    node.restart_kubelet().unwrap();
    let before = command::run(&mut cluster.kubectl(lease).unwrap()).unwrap();
    until("a newer lease", LIMIT, || {
        Ok((command::run(&mut cluster.kubectl(lease)?)? != before).then_some(()))
    })
    .unwrap();

    let audit = fs::read_to_string(cluster.audit_log()).unwrap();
    assert!(
        audit
            .lines()
            .any(|line| line.contains(r#""verb":"create""#))
    );
    assert!(!audit.lines().any(|line| line.contains(r#""verb":"get""#)));

    // A second handle sees the same cluster, and an index that is in use is not given away.
    assert_eq!(
        Cluster::attach(&name).unwrap().kubeconfig(),
        cluster.kubeconfig()
    );
    assert!(
        list()
            .unwrap()
            .iter()
            .any(|status| status.name == "lifecycle" && status.ready)
    );

    // Another cluster comes up beside it, called like one of its nodes. What a run left that crashed on
    // the way is cleaned up by the next; of one that crashed before it wrote anything down the name is
    // enough, whether the next run brings it up or takes it down. The other cluster does not notice.
    let second = Name::new(lost).unwrap();
    let beside = || {
        let beside = Cluster::up(&ClusterOptions::new(second.clone()).nodes(1), &quiet).unwrap();
        assert!(ready(&beside, "lifecycle-2-1"));
        assert!(!traces(lost).is_empty());
        fs::remove_file(beside.logs().with_file_name("state")).unwrap();
    };
    crash_on_the_way(&second);
    assert!(!processes_of(lost).is_empty());
    beside();
    beside();
    let logs = Cluster::down_but_logs(&second).unwrap().unwrap();
    assert_eq!(traces(lost), Vec::<String>::new());
    assert!(logs.join("kube-apiserver.log").exists());
    assert!(!Cluster::down(&second).unwrap());
    assert!(!logs.exists());
    assert!(ready(&cluster, "lifecycle-1") && ready(&cluster, lost));

    // Down, with a pod that runs.
    pod(&cluster, lost, "lasting", &["sleep", "3600"], "Running");
    let (before, port) = (processes_of("lifecycle"), port(&cluster));
    let programs: BTreeSet<&str> = before
        .iter()
        .map(|process| process.program.as_str())
        .collect();
    // The kernel keeps fifteen characters of a name; `systemd-socket-` is the forwarder.
    for program in [
        "etcd",
        "kubelet",
        "containerd-shim",
        "sleep",
        "systemd-socket-",
    ] {
        assert!(
            programs.contains(program),
            "no {program} among {programs:?}"
        );
    }
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert!(!traces("lifecycle").is_empty());
    assert!(Cluster::down(&name).unwrap());
    assert_eq!(traces("lifecycle"), Vec::<String>::new());
    let mut left = processes();
    left.retain(|now| {
        before
            .iter()
            .any(|then| (then.pid, then.start) == (now.pid, now.start))
    });
    assert_eq!(left, Vec::new());
    let refused = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(!Cluster::down(&name).unwrap());
}
