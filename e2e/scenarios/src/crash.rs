//! An operator that is killed after every write that it makes: a proxy in front of the API server
//! lets one answer to a write come back, throws it away, kills the operator and starts the next.
//!
//! What a killed operator has written is in the API server; what it knew is lost. If the job still
//! ends as it should, every write of its life was a point where one may crash.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Bytes that one direction of a connection holds.
const BUFFER_BYTES: usize = 64 << 10;
/// Kills that may wait for the loop that carries them out; it needs only one.
const KILLS: usize = 1;

/// Runs operators one after the other, for ever; prints a line per write.
pub async fn serve(kubeconfig: &str, operator: &str, arguments: &[&str]) -> Result<()> {
    let (_kubectl, upstream) = plain_api(kubeconfig).await?;
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .context("failed to listen")?;
    let address = listener.local_addr()?;
    let (kill, mut kills) = mpsc::channel(KILLS);
    let writes = Arc::new(AtomicU64::new(0));
    tokio::spawn(accept(listener, upstream, kill, Arc::clone(&writes)));

    let config = std::env::temp_dir().join(format!("crash-{}.kubeconfig", std::process::id()));
    std::fs::write(&config, plain_kubeconfig(&address.to_string()))?;
    loop {
        // A kill that was meant for the previous operator must not hit this one.
        while kills.try_recv().is_ok() {}
        let mut child = Command::new(operator)
            .args(arguments)
            .env("KUBECONFIG", &config)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {operator}"))?;
        tokio::select! {
            _ = kills.recv() => child.kill().await.context("failed to kill the operator")?,
            status = child.wait() => println!("operator ended by itself: {}", status?),
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

async fn accept(
    listener: TcpListener,
    upstream: String,
    kill: mpsc::Sender<()>,
    writes: Arc<AtomicU64>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, kill, writes) = (upstream.clone(), kill.clone(), Arc::clone(&writes));
        tokio::spawn(async move {
            // An error here is a connection that one side closed: the operator dials again.
            let _ = relay(client, &upstream, &kill, &writes).await;
        });
    }
}

/// Relays one connection until it ends, or until an answer to a write comes back.
async fn relay(
    mut client: TcpStream,
    upstream: &str,
    kill: &mpsc::Sender<()>,
    writes: &AtomicU64,
) -> Result<()> {
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
                write = write.or_else(|| written(bytes));
                server.write_all(bytes).await?;
            }
            read = server.read(&mut from_server) => {
                let bytes = &from_server[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                // A write that was refused changed nothing: no state to crash in.
                if let Some(write) = write.take().filter(|_| accepted(bytes)) {
                    let number = writes.fetch_add(1, Ordering::SeqCst) + 1;
                    println!("write {number}: {write}");
                    // Full means that a kill is under way already.
                    let _ = kill.try_send(());
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

/// The request line of a write, when the bytes begin one. Leases are no decision about a job.
fn written(bytes: &[u8]) -> Option<String> {
    let line = bytes.split(|byte| *byte == b'\r').next()?;
    let line = String::from_utf8_lossy(line);
    let (method, rest) = line.split_once(' ')?;
    let target = rest.split_once(' ')?.0;
    let path = target.split('?').next().unwrap_or(target);
    let writes = matches!(method, "POST" | "PUT" | "PATCH" | "DELETE");
    (writes && !path.contains("/leases") && !path.contains("reviews"))
        .then(|| format!("{method} {path}"))
}

#[cfg(test)]
mod tests {
    use super::{accepted, written};

    #[test]
    fn only_writes_that_were_carried_out_kill() {
        assert!(accepted(b"HTTP/1.1 201 Created\r\n"));
        assert!(!accepted(b"HTTP/1.1 409 Conflict\r\n"));
    }

    #[test]
    fn writes_are_told_from_reads_bodies_and_leases() {
        let line = |text: &str| written(text.as_bytes());
        assert_eq!(
            line("POST /api/v1/namespaces/n/pods?x=y HTTP/1.1\r\nhost: a\r\n"),
            Some("POST /api/v1/namespaces/n/pods".to_owned())
        );
        assert_eq!(line("GET /api/v1/pods HTTP/1.1\r\n"), None);
        assert_eq!(
            line("PUT /apis/coordination.k8s.io/v1/leases/x HTTP/1.1\r\n"),
            None
        );
        assert_eq!(line("{\"kind\":\"Pod\"}"), None);
    }
}
