//! The control plane of the native cluster: etcd, API server, controller manager, scheduler, and kwok for
//! simulated nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command;
use crate::error::Result;
use crate::layout::Layout;
use crate::network;
use crate::node::{LEASE_SECONDS, Site};
use crate::pki::{Identity, Pki};
use crate::process::Process;
use crate::state::State;
use crate::template;

/// Where the API server listens in its namespace.
pub(crate) const API_PORT: u16 = 6443;

/// The API server's address for everything inside the cluster's network.
pub(crate) fn server(layout: &Layout) -> String {
    format!("https://{}:{API_PORT}", layout.control_address())
}

/// The identities of the control plane and of the administrator.
pub(crate) fn issue(layout: &Layout, pki: &Pki) -> Result<()> {
    let names = format!(
        "IP:127.0.0.1,IP:{},IP:{},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,\
         DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local",
        layout.control_address(),
        layout.api_service()
    );
    let client = |file, subject| Identity {
        file,
        subject,
        names: "",
    };
    let identities = [
        Identity {
            file: "apiserver",
            subject: "/CN=kube-apiserver",
            names: &names,
        },
        client("kubelet-client", "/CN=kube-apiserver-kubelet-client"),
        client("admin", "/O=system:masters/CN=admin"),
        client("controller-manager", "/CN=system:kube-controller-manager"),
        client("scheduler", "/CN=system:kube-scheduler"),
        client("proxy", "/CN=system:kube-proxy"),
        // It empties finalizers, which no kubelet does and no other account may.
        client("kwok", "/O=system:masters/CN=kwok"),
    ];
    for identity in &identities {
        pki.issue(identity)?;
    }
    for file in ["admin", "controller-manager", "scheduler", "proxy", "kwok"] {
        pki.kubeconfig(file, &server(layout))?;
    }
    Ok(())
}

/// Starts etcd and the API server. The rest must wait until it answers.
pub(crate) fn start_api(site: Site<'_>) -> Result<()> {
    let Site {
        layout,
        folder,
        pki,
        ..
    } = site;
    let etcd = folder.join("etcd");
    run(
        site,
        "etcd",
        &[
            format!("--data-dir={}", etcd.display()),
            // A test cluster does not outlive its machine, so it need not wait for the disk.
            "--unsafe-no-fsync".into(),
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ],
    )?;
    let policy = folder.join("audit.yaml");
    template::write(&policy, template::AUDIT)?;
    let file = |name: &str| pki.path(name).display().to_string();
    run(
        site,
        "kube-apiserver",
        &[
            "--etcd-servers=http://127.0.0.1:2379".into(),
            format!("--advertise-address={}", layout.control_address()),
            format!("--secure-port={API_PORT}"),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--allow-privileged=true".into(),
            format!("--service-cluster-ip-range={}", layout.services()),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!(
                "--kubelet-client-certificate={}",
                file("kubelet-client.crt")
            ),
            format!("--kubelet-client-key={}", file("kubelet-client.key")),
            format!("--kubelet-certificate-authority={}", file("ca.crt")),
            "--kubelet-preferred-address-types=InternalIP".into(),
            // Webhooks are dialled by endpoint: there is no kube-proxy in the control plane's
            // namespace.
            "--enable-aggregator-routing=true".into(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit_log(folder).display()),
        ],
    )
}

/// Starts the controller manager and the scheduler, once the API server answers.
pub(crate) fn start_controllers(site: Site<'_>) -> Result<()> {
    let pki = site.pki;
    let kubeconfigs = |name: &str| {
        let path = pki
            .path(&format!("{name}.kubeconfig"))
            .display()
            .to_string();
        [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ]
        .map(|flag| format!("--{flag}={path}"))
        .to_vec()
    };
    let mut manager = kubeconfigs("controller-manager");
    manager.extend([
        "--use-service-account-credentials".into(),
        format!(
            "--service-account-private-key-file={}",
            pki.path("sa.key").display()
        ),
        format!("--root-ca-file={}", pki.path("ca.crt").display()),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
        // With the default rate the first service account comes five seconds later.
        "--kube-api-qps=500".into(),
        "--kube-api-burst=1000".into(),
        // A lost node is seen after one lease, and two lost at once are both handled at once.
        format!("--node-monitor-grace-period={LEASE_SECONDS}s"),
        "--node-monitor-period=1s".into(),
        "--node-eviction-rate=1000".into(),
        "--secondary-node-eviction-rate=1000".into(),
    ]);
    run(site, "kube-controller-manager", &manager)?;
    let mut scheduler = kubeconfigs("scheduler");
    scheduler.extend([
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
    ]);
    run(site, "kube-scheduler", &scheduler)
}

/// Starts kwok, which plays the kubelets of nodes that have its annotation.
pub(crate) fn start_kwok(site: Site<'_>) -> Result<()> {
    let stages = site.folder.join("stages.yaml");
    template::write(&stages, template::STAGES)?;
    run(
        site,
        "kwok",
        &[
            format!(
                "--kubeconfig={}",
                site.pki.path("kwok.kubeconfig").display()
            ),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=false".into(),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".into(),
            format!("--node-lease-duration-seconds={LEASE_SECONDS}"),
            format!("--cidr={}", site.layout.fake_pods()),
            format!("--node-ip={}", site.layout.control_address()),
            "--server-address=127.0.0.1:10247".into(),
        ],
    )
}

/// Every write to the API server, one JSON object a line.
pub(crate) fn audit_log(folder: &Path) -> PathBuf {
    folder.join("logs/audit.log")
}

/// The log of a program of the control plane.
pub(crate) fn log(folder: &Path, role: &str) -> PathBuf {
    folder.join("logs").join(format!("{role}.log"))
}

/// The end of a log, for an error message.
pub(crate) fn log_tail(path: &Path) -> String {
    const LINES: usize = 5;
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Memory from which on a program of the control plane collects its garbage at once: an API server that has read large
/// objects would let it grow to 17 GiB.
const GO_MEMORY: &str = "6GiB";

/// Starts a program of the tools in the control plane's namespace.
fn run(site: Site<'_>, program: &str, arguments: &[String]) -> Result<()> {
    let mut command = network::inside(&site.layout.control_namespace());
    command.arg(site.tools.program(program)?).args(arguments);
    command.env("GOMEMLIMIT", GO_MEMORY);
    record(site, program, &command, Stdio::null())
}

/// Starts a program, and remembers it as the cluster's by its role.
pub(crate) fn record(site: Site<'_>, role: &str, command: &Command, stdin: Stdio) -> Result<()> {
    let pid = command::start(command, &log(site.folder, role), stdin)?;
    let process = Process::of(pid)?;
    State::update(site.folder, |state| {
        state.processes.insert(role.to_owned(), process);
    })
}
