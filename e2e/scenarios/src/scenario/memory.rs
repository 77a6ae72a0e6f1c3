//! The operator in the memory that the chart gives it, beside all that tenants may put into the API
//! server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::TrainingJob;
use crds::names::SYSTEM_NAMESPACE;
use crds::training_job::Phase;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::Request;
use kube::{Api, Resource};

use crate::context::Context;
use crate::jobs::{ENDS_WELL, TestJob};

const JOBS: usize = 20;
const CLAIMS: usize = 500;
/// Objects that are created at once.
const AT_ONCE: usize = 4;
/// Of a new operator, which lists everything on a busy machine.
const LISTED: Duration = Duration::from_secs(240);
const OPERATOR: &str = "operator";
/// csi-provisioner, which keeps all claims.
const CONTROLLER: &str = "storage-controller";

/// A job of 1.4 MB, of the fields that cost most when they are read into a tree.
fn large_job(name: &str) -> String {
    let junk = r#"{"a":1},"#.repeat(1_400_000 / 8);
    format!(
        r#"{{"apiVersion":"fireflyer.dev/v1alpha1","kind":"TrainingJob","metadata":{{"name":"{name}"}},"spec":{{"nodes":1,"template":{{"spec":{{"containers":[{{"name":"trainer","image":"none","command":["none"]}}],"junk":[{junk}{{"a":1}}]}}}}}}}}"#
    )
}

/// A claim with as many bytes of annotations as the API server takes, which nobody binds.
fn annotated_claim(name: &str) -> String {
    let note = "x".repeat(255 * 1024);
    format!(
        r#"{{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{{"name":"{name}","annotations":{{"example.com/note":"{note}"}}}},"spec":{{"storageClassName":"","accessModes":["ReadWriteMany"],"resources":{{"requests":{{"storage":"1Mi"}}}}}}}}"#
    )
}

/// Creates an object of a namespace, as text: a tree of it would take a hundred times as much here, too.
async fn create<K>(context: &Context, object: String) -> Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let path = K::url_path(&(), Some(&context.namespace));
    let request = Request::new(path).create(&PostParams::default(), object.into_bytes())?;
    match context.client.request_text(request).await {
        // A busy API server did not answer in time, and took it: the client asked again.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

/// Counts the restarts of a component's containers.
async fn restarts(context: &Context, component: &str, replicas: usize) -> Result<i32> {
    let pods = context.pods_of(component).await?;
    let count = pods.len();
    ensure!(
        count == replicas,
        "{count} pods of {component}, not {replicas}"
    );
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
    let containers = statuses.flat_map(|status| status.container_statuses.iter().flatten());
    Ok(containers.map(|container| container.restart_count).sum())
}

/// Twenty jobs of 1.4 MB and five hundred claims with 256 KiB of annotations, all of one tenant: both replicas list them
/// anew within their limit, and place the job of another, whose volume is made.
pub async fn large_objects_of_a_tenant_end_no_operator(context: Context) -> Result<()> {
    let before = restarts(&context, OPERATOR, 2).await?;
    let controllers = restarts(&context, CONTROLLER, 1).await?;
    let jobs: Vec<String> = (0..JOBS).map(|index| format!("large-{index:02}")).collect();
    for names in jobs.chunks(AT_ONCE) {
        let created = names
            .iter()
            .map(|name| create::<TrainingJob>(&context, large_job(name)));
        try_join_all(created)
            .await
            .context("failed to create large jobs")?;
    }
    let claims: Vec<usize> = (0..CLAIMS).collect();
    for numbers in claims.chunks(AT_ONCE) {
        let created = numbers.iter().map(|number| {
            let claim = annotated_claim(&format!("noted-{number:03}"));
            create::<PersistentVolumeClaim>(&context, claim)
        });
        try_join_all(created)
            .await
            .context("failed to create annotated claims")?;
    }
    for name in [&jobs[0], &jobs[JOBS - 1]] {
        let message = context
            .eventually("a large job says why it waits", LISTED, || async {
                context.condition(name, "Assigned", "False").await
            })
            .await?;
        ensure!(message.contains("65536"), "{message}");
    }
    let watching = restarts(&context, OPERATOR, 2).await? - before;
    ensure!(
        watching == 0,
        "containers of the operator ended {watching} times"
    );

    // What was there before the operator costs it most: it comes in pages.
    let deployment = "deployment/fireflyer-operator";
    let of_ours = ["-n", SYSTEM_NAMESPACE, deployment];
    context
        .kubectl(&[&["rollout", "restart"][..], &of_ours].concat())
        .await?;
    let wait = ["rollout", "status", "--timeout=240s"];
    context.kubectl(&[&wait[..], &of_ours].concat()).await?;
    context
        .eventually("the operators of before are gone", LISTED, || async {
            Ok((context.pods_of(OPERATOR).await?.len() == 2).then_some(()))
        })
        .await?;
    context.volume("beside").await?;
    context
        .submit(&TestJob::shell("beside", 1, ENDS_WELL).checkpoint("beside", 300))
        .await?;
    context.reaches("beside", Phase::Succeeded, LISTED).await?;
    let provisioning = restarts(&context, CONTROLLER, 1).await? - controllers;
    ensure!(
        provisioning == 0,
        "what makes volumes ended {provisioning} times"
    );
    let listing = restarts(&context, OPERATOR, 2).await?;
    ensure!(
        listing == 0,
        "containers of the new operators ended {listing} times"
    );

    for name in &jobs {
        context.delete(name).await?;
    }
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &context.namespace);
    let (all, all_of_them) = (ListParams::default(), DeleteParams::default());
    claims.delete_collection(&all_of_them, &all).await?;
    context.delete("beside").await
}
