//! The state file of a cluster: what it is made of and which processes belong to it. A text file,
//! so that a person can finish by hand what a crash left behind. Every change is read, change,
//! replace under a lock.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{Error, ErrorContext, Result};
use crate::kind;
use crate::process::Process;

const HEADER: &str = "fireflyer-cluster 1";
const FILE: &str = "state";

/// Who runs the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEngine {
    /// This crate: processes in namespaces.
    Native,
    /// kind, in containers of Docker.
    Kind,
}

/// Names who runs the nodes of new clusters, `kind` or `native`. Unset: kind where it is installed and Docker answers.
pub const ENGINE: &str = "FIREFLYER_ENGINE";

impl NodeEngine {
    /// Who runs the nodes of a new cluster here.
    pub fn here() -> Self {
        let asked = env::var(ENGINE).ok();
        match asked.and_then(|name| Self::named(&name)) {
            Some(engine) => engine,
            None if kind::available() => Self::Kind,
            None => Self::Native,
        }
    }

    /// `kind` or `native`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "kind" => Some(Self::Kind),
            "native" => Some(Self::Native),
            _ => None,
        }
    }
}

/// A node that the cluster was made with. Its number is its place in the list, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) zone: String,
}

/// What is known about a cluster between two runs of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) index: u8,
    pub(crate) engine: NodeEngine,
    /// Whoever is bringing it up right now.
    pub(crate) owner: Option<Process>,
    /// The loopback port of the API server.
    pub(crate) port: Option<u16>,
    /// Everything was up once.
    pub(crate) ready: bool,
    pub(crate) nodes: Vec<NodeState>,
    /// By role: `etcd`, `kube-apiserver`, or the name of a node.
    pub(crate) processes: BTreeMap<String, Process>,
}

impl State {
    pub(crate) fn new(index: u8, engine: NodeEngine) -> Self {
        Self {
            index,
            engine,
            owner: None,
            port: None,
            ready: false,
            nodes: Vec::new(),
            processes: BTreeMap::new(),
        }
    }

    /// Reads the state of the cluster in `folder`; none when there is no such file.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => parse(&text)
                .context(|| format!("failed to read {}", path.display()))
                .map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(|| format!("failed to read {}", path.display())),
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let fresh = folder.join("state.new");
        fs::write(&fresh, self.to_text())
            .and_then(|()| fs::rename(&fresh, &path))
            .context(|| format!("failed to write {}", path.display()))
    }

    /// Changes the state of the cluster in `folder`, alone.
    pub(crate) fn update(folder: &Path, change: impl FnOnce(&mut Self)) -> Result<()> {
        let _lock = lock(folder)?;
        let Some(mut state) = Self::read(folder)? else {
            return Err(Error::new(format!(
                "{} holds no cluster any more",
                folder.display()
            )));
        };
        change(&mut state);
        state.write(folder)
    }

    fn to_text(&self) -> String {
        let mut lines = vec![HEADER.to_owned(), format!("index {}", self.index)];
        lines.push(match self.engine {
            NodeEngine::Native => "engine native".to_owned(),
            NodeEngine::Kind => "engine kind".to_owned(),
        });
        if let Some(owner) = self.owner {
            lines.push(format!("owner {} {}", owner.pid, owner.start));
        }
        if let Some(port) = self.port {
            lines.push(format!("port {port}"));
        }
        if self.ready {
            lines.push("ready".to_owned());
        }
        lines.extend(
            self.nodes
                .iter()
                .map(|node| format!("node {} {}", node.name, node.zone)),
        );
        let processes = self.processes.iter();
        lines.extend(processes.map(|(role, p)| format!("process {role} {} {}", p.pid, p.start)));
        lines.join("\n") + "\n"
    }
}

/// Locks all clusters of this user: while one is reserved or removed, no other is. The lock is on the
/// folder above theirs, because the last cluster takes their own with it.
pub(crate) fn lock_all(clusters: &Path) -> Result<File> {
    let folder = clusters.parent().unwrap_or(clusters);
    loop {
        fs::create_dir_all(folder).context(|| format!("failed to make {}", folder.display()))?;
        let file = lock(folder)?;
        // Whoever held the lock may have removed the folder: then another may be locked by now.
        let is_there = fs::metadata(folder).is_ok_and(|there| {
            file.metadata()
                .is_ok_and(|locked| (locked.dev(), locked.ino()) == (there.dev(), there.ino()))
        });
        if is_there {
            return Ok(file);
        }
    }
}

/// Locks a folder against other runs of ours until the returned file is dropped; the lock leaves no
/// trace.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    let file = File::open(folder).context(|| format!("failed to open {}", folder.display()))?;
    file.lock()
        .context(|| format!("failed to lock {}", folder.display()))?;
    Ok(file)
}

fn parse(text: &str) -> Result<State> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(Error::new(format!("the first line is not {HEADER:?}")));
    }
    let mut state = State::new(u8::MAX, NodeEngine::Native);
    for line in lines {
        if parse_line(&mut state, line).is_none() {
            return Err(Error::new(format!("the line {line:?} makes no sense")));
        }
    }
    if state.index == u8::MAX {
        return Err(Error::new("there is no line `index N`"));
    }
    Ok(state)
}

fn parse_line(state: &mut State, line: &str) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let process = |pid: &str, start: &str| {
        Some(Process {
            pid: pid.parse().ok()?,
            start: start.parse().ok()?,
        })
    };
    match *words.as_slice() {
        ["index", index] => state.index = index.parse().ok()?,
        ["engine", name] => state.engine = NodeEngine::named(name)?,
        ["owner", pid, start] => state.owner = Some(process(pid, start)?),
        ["port", port] => state.port = Some(port.parse().ok()?),
        ["ready"] => state.ready = true,
        ["node", name, zone] => {
            state.nodes.push(NodeState {
                name: name.to_owned(),
                zone: zone.to_owned(),
            });
        }
        ["process", role, pid, start] => {
            state
                .processes
                .insert(role.to_owned(), process(pid, start)?);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::{HEADER, NodeEngine, NodeState, Process, State, parse};

    fn full() -> State {
        let mut state = State::new(3, NodeEngine::Native);
        state.owner = Some(Process { pid: 7, start: 70 });
        state.port = Some(40_123);
        state.ready = true;
        for (name, zone) in [("dev-1", "a"), ("dev-2", "b")] {
            state.nodes.push(NodeState {
                name: name.into(),
                zone: zone.into(),
            });
        }
        state
            .processes
            .insert("etcd".into(), Process { pid: 9, start: 90 });
        state
            .processes
            .insert("demo-1".into(), Process { pid: 10, start: 91 });
        state
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        assert_eq!(parse(&full().to_text()).unwrap(), full());
        let empty = State::new(0, NodeEngine::Kind);
        assert_eq!(parse(&empty.to_text()).unwrap(), empty);
    }

    #[test]
    fn a_file_that_is_not_ours_or_is_damaged_is_refused() {
        assert!(parse("").is_err());
        assert!(parse("fireflyer-cluster 2\nindex 0\n").is_err());
        assert!(
            parse(&format!("{HEADER}\n"))
                .unwrap_err()
                .to_string()
                .contains("index")
        );
        for line in [
            "process etcd 12",
            "port 70000",
            "node onlyname",
            "what",
            "index -1",
        ] {
            let text = format!("{HEADER}\nindex 0\n{line}\n");
            assert!(
                parse(&text).unwrap_err().to_string().contains(line),
                "{line}"
            );
        }
    }
}
