//! An operator that is killed after every write that it makes: a proxy in front of the API server
//! lets one write through at a time; when its answer comes back, it is thrown away, the operator killed and the
//! next one started, before the next write goes through.
//!
//! What a killed operator has written is in the API server; what it knew is lost. If the job still
//! ends as it should, every write of its life was a point where one may crash.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Bytes that one direction of a connection holds.
const BUFFER_BYTES: usize = 64 << 10;
/// Kills that may wait for the loop that carries them out: there is one write at a time.
const KILLS: usize = 1;

/// Tells that a kill is done.
type Done = oneshot::Sender<()>;

/// What all connections share.
#[derive(Debug)]
struct Gate {
    /// Held from before a write goes through until its kill is done; counts the writes.
    turn: Arc<Mutex<u64>>,
    /// How many operators have been killed.
    life: AtomicU64,
    /// Asks for a kill.
    kill: mpsc::Sender<Done>,
}

impl Gate {
    fn new() -> (Arc<Self>, mpsc::Receiver<Done>) {
        let (kill, kills) = mpsc::channel(KILLS);
        let gate = Self {
            turn: Arc::default(),
            life: AtomicU64::new(0),
            kill,
        };
        (Arc::new(gate), kills)
    }

    /// Returns when the operator is dead.
    async fn kill_operator(&self) -> Result<()> {
        let (done, dead) = oneshot::channel();
        self.kill.send(done).await?;
        Ok(dead.await?)
    }

    /// The operator is dead: what its connections still hold was never sent.
    fn next_life(&self) {
        self.life.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs operators one after the other, until one ends by itself; prints a line per write and per kill.
pub async fn serve(kubeconfig: &str, operator: &str, arguments: &[&str]) -> Result<()> {
    let (_kubectl, upstream) = plain_api(kubeconfig).await?;
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .context("failed to listen")?;
    let address = listener.local_addr()?;
    let (gate, mut kills) = Gate::new();
    tokio::spawn(accept(listener, upstream, Arc::clone(&gate)));

    let config = std::env::temp_dir().join(format!("crash-{}.kubeconfig", std::process::id()));
    std::fs::write(&config, plain_kubeconfig(&address.to_string()))?;
    loop {
        let mut child = Command::new(operator)
            .args(arguments)
            .env("KUBECONFIG", &config)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {operator}"))?;
        tokio::select! {
            Some(done) = kills.recv() => {
                child.kill().await.context("failed to kill the operator")?;
                gate.next_life();
                // Nobody waits when the connection broke meanwhile.
                let _ = done.send(());
            }
            status = child.wait() => bail!("the operator ended by itself: {}", status?),
        }
    }
}

/// `kubectl proxy`: TLS and credentials on its side, plain HTTP on ours; with the rights of the
/// operator's own account.
async fn plain_api(kubeconfig: &str) -> Result<(Child, String)> {
    let mut child = Command::new("kubectl")
        .args(["--kubeconfig", kubeconfig, "proxy", "--port=0"])
        .arg(format!(
            "--as=system:serviceaccount:{}:fireflyer-operator",
            crds::names::SYSTEM_NAMESPACE
        ))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start kubectl proxy")?;
    let output = child.stdout.take().context("kubectl proxy has no output")?;
    let line = BufReader::new(output)
        .lines()
        .next_line()
        .await?
        .unwrap_or_default();
    let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
    Ok((child, address))
}

fn plain_kubeconfig(address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
         users: [{{name: u, user: {{}}}}]\n"
    )
}

async fn accept(listener: TcpListener, upstream: String, gate: Arc<Gate>) {
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, gate) = (upstream.clone(), Arc::clone(&gate));
        let life = gate.life.load(Ordering::SeqCst);
        tokio::spawn(async move {
            // An error here is a connection that one side closed: the operator dials again.
            let _ = relay(client, &upstream, &gate, life).await;
        });
    }
}

/// Relays one connection, made in a certain life, until it ends or until an answer to a write comes back.
async fn relay(mut client: TcpStream, upstream: &str, gate: &Gate, life: u64) -> Result<()> {
    let mut server = TcpStream::connect(upstream).await?;
    let (mut from_client, mut from_server) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let mut write = None;
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let bytes = &from_client[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                if let (None, Some(line)) = (&write, written(bytes)) {
                    let turn = Arc::clone(&gate.turn).lock_owned().await;
                    if gate.life.load(Ordering::SeqCst) != life {
                        return Ok(());
                    }
                    write = Some((line, turn));
                }
                server.write_all(bytes).await?;
            }
            read = server.read(&mut from_server) => {
                let bytes = &from_server[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                // A write that was refused changed nothing: no state to crash in.
                if let Some((line, mut turn)) = write.take().filter(|_| accepted(bytes)) {
                    *turn += 1;
                    println!("write {turn}: {line}");
                    gate.kill_operator().await?;
                    println!("killed after write {turn}");
                    return Ok(());
                }
                client.write_all(bytes).await?;
            }
        }
    }
}

/// Whether the bytes begin an answer that says a write was carried out.
fn accepted(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.1 2")
}

/// The request line of a write, when the bytes begin one. Leases are no decision about a job, and a dry
/// run stores nothing: whoever dies after it begins with the same one.
fn written(bytes: &[u8]) -> Option<String> {
    let line = bytes.split(|byte| *byte == b'\r').next()?;
    let line = String::from_utf8_lossy(line);
    let (method, rest) = line.split_once(' ')?;
    let target = rest.split_once(' ')?.0;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let writes = matches!(method, "POST" | "PUT" | "PATCH" | "DELETE");
    let stores = !path.contains("/leases") && !path.contains("reviews") && !is_dry_run(query);
    (writes && stores).then(|| format!("{method} {path}"))
}

/// Whether the query of a request keeps it from storing anything.
pub(crate) fn is_dry_run(query: &str) -> bool {
    query.split('&').any(|pair| pair == "dryRun=All")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// An API server that carries out everything, slowly enough for two writes to overlap, and counts.
    async fn obedient(carried_out: Arc<AtomicUsize>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let carried_out = Arc::clone(&carried_out);
                tokio::spawn(async move {
                    let mut bytes = [0; 256];
                    while client.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                        carried_out.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        let answered = client.write_all(b"HTTP/1.1 201 Created\r\n\r\n").await;
                        if answered.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn of_two_writes_at_once_the_second_waits_and_dies_with_its_operator() {
        let carried_out = Arc::new(AtomicUsize::new(0));
        let upstream = obedient(Arc::clone(&carried_out)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let (gate, mut kills) = Gate::new();
        for life in 0..2 {
            let mut operator = Vec::new();
            for _ in 0..2 {
                let mut connection = TcpStream::connect(proxy).await.unwrap();
                connection
                    .write_all(b"POST /api/v1/namespaces/n/pods HTTP/1.1\r\n\r\n")
                    .await
                    .unwrap();
                operator.push(connection);
                let (client, _) = listener.accept().await.unwrap();
                let (upstream, gate) = (upstream.clone(), Arc::clone(&gate));
                tokio::spawn(async move { relay(client, &upstream, &gate, life).await });
            }
            let done = kills.recv().await.unwrap();
            gate.next_life();
            done.send(()).unwrap();
            for mut connection in operator {
                let mut answer = Vec::new();
                // That the connection was reset is as good as that it was closed.
                let _ = connection.read_to_end(&mut answer).await;
                assert_eq!(answer, b"", "nobody learns of a write");
            }
            let writes = u64::try_from(carried_out.load(Ordering::SeqCst)).unwrap();
            assert_eq!(writes, life + 1, "one write for each life");
        }
    }

    #[test]
    fn only_writes_that_were_carried_out_kill() {
        assert!(accepted(b"HTTP/1.1 201 Created\r\n"));
        assert!(!accepted(b"HTTP/1.1 409 Conflict\r\n"));
    }

    #[test]
    fn writes_are_separated_from_reads_bodies_and_leases() {
        let line = |text: &str| written(text.as_bytes());
        assert_eq!(
            line("POST /api/v1/namespaces/n/pods?x=y HTTP/1.1\r\nhost: a\r\n"),
            Some("POST /api/v1/namespaces/n/pods".to_owned())
        );
        assert_eq!(line("GET /api/v1/pods HTTP/1.1\r\n"), None);
        let dry_run = "POST /api/v1/namespaces/n/pods?&dryRun=All&fieldManager=f HTTP/1.1\r\n";
        assert_eq!(line(dry_run), None);
        assert_eq!(
            line("PUT /apis/coordination.k8s.io/v1/leases/x HTTP/1.1\r\n"),
            None
        );
        assert_eq!(line("{\"kind\":\"Pod\"}"), None);
    }
}
