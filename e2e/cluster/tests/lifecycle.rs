//! The native cluster itself, on this machine: up, a node lost and back, cut off and back, another
//! cluster beside it, down without a trace. Ignored by default because it needs root, the tools and
//! most of a minute: `cargo test -p cluster -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cluster::{Cluster, Engine, Name, Options, Outcome, command, image, list, until};

const LIMIT: Duration = Duration::from_secs(60);
/// With its programs built, a cluster of two nodes is up within 20 s; ten times that is the limit.
const UP_LIMIT: Duration = Duration::from_secs(200);

fn quiet(_: &str, _: Outcome, _: Duration) {}

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

/// A pod runs on the node and ends well.
fn runs_a_pod(cluster: &Cluster, node: &str) {
    let image = image::reference("busybox");
    let place = format!(r#"{{"spec":{{"nodeName":"{node}"}}}}"#);
    let run = ["run", node, "--image", &image, "--restart=Never"];
    let start = || {
        let mut kubectl = cluster.kubectl(run)?;
        kubectl.args(["--overrides", &place, "--command", "--", "true"]);
        command::run(&mut kubectl)
    };
    // The namespace's service account may be a moment younger than the node.
    until("a pod is accepted", LIMIT, || Ok(start().ok())).unwrap();
    let phase = ["get", "pod", node, "-o", "jsonpath={.status.phase}"];
    until("the pod ends well", LIMIT, || {
        let phase = command::run(&mut cluster.kubectl(phase)?)?;
        Ok((phase == "Succeeded").then_some(()))
    })
    .unwrap();
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
    let name = Name::new("lifecycle").unwrap();
    let options = Options::new(name.clone()).nodes(2).zones(&["a", "b"]);
    let started = Instant::now();
    let cluster = Cluster::up(&options, &quiet).unwrap();
    assert!(started.elapsed() < UP_LIMIT, "{:?}", started.elapsed());
    assert!(cluster.nodes().all(|node| ready(&cluster, node.name())));
    if cluster.engine() == Engine::Kind {
        Cluster::down(&name).unwrap();
        return;
    }
    let (busybox, _) = image::busybox().unwrap().build().unwrap();
    cluster.import(&[busybox], &quiet).unwrap();
    runs_a_pod(&cluster, "lifecycle-1");
    runs_a_pod(&cluster, "lifecycle-2");
    let lost = "lifecycle-2";
    let node = cluster.node(lost).unwrap();

    // A power cut, and back over the same disk.
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

    // Another cluster comes up beside it, called like one of its nodes. Of a run that crashed before
    // it wrote anything down the name is enough to clean up, whether the next run brings it up or
    // takes it down, and its neighbour does not notice.
    let second = Name::new(lost).unwrap();
    let beside = || {
        let beside = Cluster::up(&Options::new(second.clone()).nodes(1), &quiet).unwrap();
        assert!(ready(&beside, "lifecycle-2-1"));
        assert!(!traces(lost).is_empty());
        fs::remove_file(beside.logs().with_file_name("state")).unwrap();
    };
    beside();
    beside();
    assert!(Cluster::down(&second).unwrap());
    assert_eq!(traces(lost), Vec::<String>::new());
    assert!(ready(&cluster, "lifecycle-1") && ready(&cluster, lost));

    assert!(!traces("lifecycle").is_empty());
    assert!(Cluster::down(&name).unwrap());
    assert_eq!(traces("lifecycle"), Vec::<String>::new());
    assert!(!cluster.logs().exists());
    assert!(!Cluster::down(&name).unwrap());
}
