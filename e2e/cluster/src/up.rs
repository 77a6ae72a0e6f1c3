//! Bringing a cluster up: reserve its name and subnets, make certificates and network, start the
//! control plane and the nodes at once, and wait until the nodes are Ready and pods can be created.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::cluster::{Cluster, kubeconfig};
use crate::command;
use crate::control;
use crate::down;
use crate::error::{Error, ErrorContext, Result};
use crate::fake;
use crate::forwarder;
use crate::kind;
use crate::layout::{Layout, MAX_CLUSTERS, MAX_NODES, Name, free_index};
use crate::network;
use crate::options::ClusterOptions;
use crate::paths;
use crate::pki::Pki;
use crate::prerequisites::is_root;
use crate::process::Process;
use crate::progress::{ProgressFn, StepOutcome, step};
use crate::state::{NodeEngine, NodeState, State, lock_all};
use crate::template::{STORAGE, VOLUME, render};
use crate::tools::{self, Tools};
use crate::wait::until;

/// Volumes of class `demo-shared`. They are not used twice, since nobody empties them, so there are
/// plenty.
const VOLUMES: usize = 32;
/// A machine that is busy building takes four times as long as an idle one.
const API_LIMIT: Duration = Duration::from_secs(90);
const NODES_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn up(options: &ClusterOptions, progress: ProgressFn<'_>) -> Result<Cluster> {
    let engine = NodeEngine::here();
    check(engine, options)?;
    let tools = Tools::build(&tools::of_cluster(engine), progress)?;
    let mut cluster = reserve(options, engine, tools, progress)?;
    let (name, logs) = (options.name.clone(), cluster.logs());
    fill(&mut cluster, options, progress).context(|| {
        format!(
            "the cluster {name} did not come up; its logs are in {}, `cargo xtask cluster down \
             --name {name}` removes it",
            logs.display()
        )
    })?;
    Ok(cluster)
}

/// Starts what belongs to a reserved cluster, until it can be used.
fn fill(cluster: &mut Cluster, options: &ClusterOptions, progress: ProgressFn<'_>) -> Result<()> {
    match cluster.engine {
        NodeEngine::Kind => {
            kind::create(cluster, progress)?;
            step(progress, "nodes Ready", || {
                Ok((cluster.wait_ready(NODES_LIMIT)?, StepOutcome::Done))
            })?;
        }
        NodeEngine::Native => start(cluster, progress)?,
    }
    step(progress, "storage", || {
        Ok((make_storage(cluster)?, StepOutcome::Done))
    })?;
    if options.fake_nodes > 0 {
        cluster.add_fake_nodes(options.fake_nodes, &options.zones, progress)?;
    }
    State::update(&cluster.folder, |state| {
        state.ready = true;
        state.owner = None;
    })
}

fn check(engine: NodeEngine, options: &ClusterOptions) -> Result<()> {
    if engine == NodeEngine::Native && !is_root() {
        return Err(Error::new("only root may make namespaces and mounts"));
    }
    if engine == NodeEngine::Kind && !kind::available() {
        return Err(Error::new(
            "kind cannot run here: install it, and start Docker so that `docker info` succeeds",
        ));
    }
    if options.fake_nodes > 0 {
        fake::check(engine)?;
    }
    if options.nodes == 0 || options.nodes > MAX_NODES {
        return Err(Error::new(format!(
            "{} nodes: a cluster has 1 to {MAX_NODES}",
            options.nodes
        )));
    }
    if options.zones.is_empty() {
        return Err(Error::new(
            "no zone is given: a node is in one, whatever it is called",
        ));
    }
    for zone in &options.zones {
        // The same alphabet keeps them good as label values and as words of the state file.
        Name::new(zone).context(|| format!("the zone {zone:?} is not a name"))?;
    }
    Ok(())
}

/// Removes what an earlier cluster of the name left and takes the name and the lowest free index.
fn reserve(
    options: &ClusterOptions,
    engine: NodeEngine,
    tools: Tools,
    progress: ProgressFn<'_>,
) -> Result<Cluster> {
    let clusters = paths::clusters()?;
    refuse_hidden(&clusters)?;
    let _alone = lock_all(&clusters)?;
    fs::create_dir_all(&clusters).context(|| format!("failed to make {}", clusters.display()))?;
    let folder = clusters.join(options.name.as_str());
    let old = down::read(&folder)?;
    down::refuse_while_owned(&options.name, old.as_ref())?;
    if old.is_some() || folder.exists() || !network::namespaces(&options.name).is_empty() {
        step(progress, "remove the old cluster", || {
            Ok((
                down::remove(&options.name, &folder, old.as_ref())?,
                StepOutcome::Done,
            ))
        })?;
    }

    let index = free_index(&taken(&clusters)).ok_or_else(|| {
        Error::new(format!(
            "{MAX_CLUSTERS} clusters are up: take one down, see `cargo xtask cluster status`"
        ))
    })?;
    let layout = Layout::new(options.name.clone(), index)?;
    let mut state = State::new(index, engine);
    state.owner = Some(Process::of(std::process::id())?);
    for number in 1..=options.nodes {
        let zone = options
            .zones
            .get((number - 1) % options.zones.len())
            .cloned()
            .unwrap_or_default();
        let name = match engine {
            NodeEngine::Native => layout.node_name(number),
            NodeEngine::Kind => kind::node_name(&options.name, number),
        };
        state.nodes.push(NodeState { name, zone });
    }
    fs::create_dir(&folder).context(|| format!("failed to make {}", folder.display()))?;
    for part in ["logs", "nodes", "shared"] {
        fs::create_dir(folder.join(part)).context(|| format!("failed to make {part}"))?;
    }
    state.write(&folder)?;
    let nodes = state.nodes;
    Ok(Cluster {
        layout,
        pki: Pki::open(folder.join("pki")),
        folder,
        engine,
        nodes,
        tools,
        port: None,
    })
}

fn taken(clusters: &Path) -> Vec<u8> {
    let entries = fs::read_dir(clusters).into_iter().flatten().flatten();
    let states = entries.filter_map(|entry| State::read(&entry.path()).ok().flatten());
    states.map(|state| state.index).collect()
}

/// A node hides the machine's folders behind its own there, and would not find its configuration.
fn refuse_hidden(clusters: &Path) -> Result<()> {
    for folder in [clusters.to_path_buf(), paths::cache()?] {
        for hidden in ["/run", "/var/run", "/var/lib", "/var/log", "/proc"] {
            if folder.starts_with(hidden) {
                return Err(Error::new(format!(
                    "{} is below {hidden}, where a node has folders of its own: set $XDG_STATE_HOME or \
                     $XDG_CACHE_HOME to another place",
                    folder.display()
                )));
            }
        }
    }
    Ok(())
}

fn start(cluster: &mut Cluster, progress: ProgressFn<'_>) -> Result<()> {
    step(progress, "certificates and network", || {
        let pki = cluster.folder.join("pki");
        let layout = &cluster.layout;
        thread::scope(|scope| {
            let network = scope.spawn(|| make_network(layout, cluster.nodes.len()));
            Pki::create(pki).and_then(|pki| control::issue(layout, &pki))?;
            network
                .join()
                .unwrap_or_else(|_| Err(Error::new("the network thread panicked")))
        })?;
        Ok(((), StepOutcome::Done))
    })?;
    let port = step(progress, "API server", || {
        Ok((start_api_and_nodes(cluster)?, StepOutcome::Done))
    })?;
    cluster.port = Some(port);
    step(progress, "nodes Ready", || {
        // Until it exists the API server may not ask kubelets for logs; a kubelet that once refused
        // it does so for 30 s.
        let binding = ["create", "clusterrolebinding", "apiserver-kubelet"];
        let role = [
            "--clusterrole=system:kubelet-api-admin",
            "--user=kube-apiserver-kubelet-client",
        ];
        command::run(&mut cluster.kubectl(binding.into_iter().chain(role))?)?;
        control::start_controllers(cluster.site())?;
        cluster.wait_ready(NODES_LIMIT)?;
        // Pods are refused before their namespace has it.
        until("the default service account", NODES_LIMIT, || {
            command::run(&mut cluster.kubectl(["get", "serviceaccount", "default"])?).map(Some)
        })?;
        Ok(((), StepOutcome::Done))
    })
}

fn make_network(layout: &Layout, nodes: usize) -> Result<()> {
    network::create(layout)?;
    (1..=nodes).try_for_each(|number| network::add_node(layout, number, nodes))
}

/// Starts the API server and all nodes, which ask for it until it is there, and waits for it.
/// Returns its loopback port.
fn start_api_and_nodes(cluster: &Cluster) -> Result<u16> {
    control::start_api(cluster.site())?;
    let port = forwarder::start(cluster.site())?;
    let server = format!("https://127.0.0.1:{port}");
    cluster
        .pki
        .admin_kubeconfig(&kubeconfig(&cluster.folder), &server)?;
    State::update(&cluster.folder, |state| state.port = Some(port))?;
    let inside = control::server(&cluster.layout);
    for index in 0..cluster.nodes.len() {
        let node = cluster.native(index);
        node.prepare(&inside)?;
        node.start()?;
    }
    until("the API server", API_LIMIT, || {
        for role in ["etcd", "kube-apiserver"] {
            let state = State::read(&cluster.folder)?;
            let process = state.and_then(|state| state.processes.get(role).copied());
            if !process.is_some_and(Process::alive) {
                let tail = control::log_tail(&control::log(&cluster.folder, role));
                return Err(Error::new(format!(
                    "{role} ended; its log ends with\n{tail}"
                )));
            }
        }
        command::run(&mut cluster.kubectl(["get", "--raw", "/readyz"])?).map(Some)
    })?;
    Ok(port)
}

fn make_storage(cluster: &Cluster) -> Result<()> {
    let mut yaml = STORAGE.to_owned();
    for number in 1..=VOLUMES {
        let number = format!("{number:02}");
        let folder = cluster.shared().join(&number);
        let open = fs::Permissions::from_mode(0o777);
        fs::create_dir_all(&folder)
            .and_then(|()| fs::set_permissions(&folder, open))
            .context(|| format!("failed to make {}", folder.display()))?;
        yaml += &render(VOLUME, &[("NUMBER", &number)]);
    }
    // Nothing of it can be there yet, so nothing need be compared or looked up.
    let mut create = cluster.kubectl(["create", "--validate=false", "-f", "-"])?;
    command::run_with_input(&mut create, yaml.as_bytes()).map(|_| ())
}
