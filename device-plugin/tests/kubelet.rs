//! The agent against a kubelet of our own making, over real sockets in a temporary folder: what a
//! kubelet does when it starts, restarts, loses streams and asks for devices.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test harness: a surprise ends the test"
)]

mod fake;

use std::fs;

use fake::{Kubelet, Node, PAPER, eventually};
use tonic::Code;

const GPU: &str = "nvidia.com/gpu";
const RDMA: &str = "fireflyer.dev/rdma";
const NODE: &str = "fireflyer.dev/node";

#[tokio::test]
async fn a_node_is_announced_with_its_gpus_slots_and_itself() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    let gpus = kubelet.plugin(GPU).await;
    let slots = kubelet.plugin(RDMA).await;
    let itself = kubelet.plugin(NODE).await;
    gpus.healthy(8).await;
    slots.healthy(8).await;
    itself.healthy(1).await;
    assert!(gpus.prefers && !slots.prefers && !itself.prefers);
    let at = gpus.devices().await[4].topology.clone();
    assert_eq!(at.map(|at| at.nodes[0].id), Some(1));
    let slots_at = slots.devices().await;
    assert!(slots_at.iter().all(|slot| slot.topology.is_none()));
    agent.ready().await;

    agent.stop().await;
    let left: Vec<_> = fs::read_dir(&node.plugins)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["kubelet.sock"]);
}

#[tokio::test]
async fn a_kubelet_that_comes_late_is_found() {
    let node = Node::new(PAPER);
    fs::remove_dir(&node.plugins).unwrap();
    let agent = node.agent();
    fs::create_dir(&node.plugins).unwrap();
    let mut kubelet = Kubelet::start(&node.plugins);
    kubelet.plugin(NODE).await.healthy(1).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_kubelet_that_restarts_gets_every_plugin_again() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    kubelet.plugin(GPU).await.devices().await;
    for _ in 0..20 {
        drop(kubelet);
        kubelet = Kubelet::start(&node.plugins);
        for resource in [GPU, RDMA, NODE] {
            kubelet.plugin(resource).await.devices().await;
        }
    }
    agent.stop().await;
}

#[tokio::test]
async fn two_restarts_in_a_row_end_with_the_last_kubelet() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    kubelet.plugin(GPU).await.devices().await;
    drop(kubelet);
    drop(Kubelet::start(&node.plugins));
    let mut kubelet = Kubelet::start(&node.plugins);
    for resource in [GPU, RDMA, NODE] {
        kubelet.plugin(resource).await.devices().await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_socket_that_is_deleted_is_made_anew() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    let first = kubelet.plugin(GPU).await;
    first.devices().await;
    fs::remove_file(&first.socket).unwrap();
    let second = kubelet.plugin(GPU).await;
    assert_ne!(second.socket, first.socket);
    second.healthy(8).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_folder_that_is_replaced_is_followed() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    kubelet.plugin(GPU).await.devices().await;
    drop(kubelet);
    fs::rename(&node.plugins, node.root().join("old")).unwrap();
    fs::create_dir(&node.plugins).unwrap();
    let mut kubelet = Kubelet::start(&node.plugins);
    kubelet.plugin(GPU).await.healthy(8).await;
    agent.stop().await;
}

#[tokio::test]
async fn the_plugin_registers_again_with_a_kubelet_that_forgot_it() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    let plugin = kubelet.plugin(GPU).await;
    plugin.devices().await;
    drop(plugin);
    kubelet.plugin(GPU).await.healthy(8).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_kubelet_that_refuses_is_asked_again() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    kubelet.refuse(4);
    let agent = node.agent();
    kubelet.plugin(NODE).await.healthy(1).await;
    kubelet.plugin(GPU).await.healthy(8).await;
    kubelet.plugin(RDMA).await.healthy(8).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_fault_reaches_the_kubelet_and_goes_again() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    let (gpus, slots) = (kubelet.plugin(GPU).await, kubelet.plugin(RDMA).await);
    gpus.healthy(8).await;
    slots.healthy(8).await;

    let gpu = "GPU-00000000-0000-4000-a100-000000000002";
    let fault = format!("faults: [{{device: {gpu}, reason: fell off the bus}}]");
    node.write(&PAPER.replace("faults: []", &fault));
    gpus.healthy(7).await;
    let refused = gpus.allocate(&[gpu]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    node.write("numaNodes: []");
    eventually("the mistake is counted", || {
        let text = agent.metrics();
        text.contains("fireflyer_device_plugin_discoveries_total{outcome=\"failed\"}")
    })
    .await;
    assert!(
        gpus.allocate(&[gpu]).await.is_err(),
        "the last facts remain"
    );

    let fault = "faults: [{device: mlx5_0, reason: link down}]";
    node.write(&PAPER.replace("faults: []", fault));
    gpus.healthy(8).await;
    slots.healthy(0).await;

    node.write(PAPER);
    slots.healthy(8).await;
    agent.stop().await;
}

#[tokio::test]
async fn devices_that_appear_later_are_announced_then() {
    let bare = "numaNodes: [0]\n";
    let node = Node::new(bare);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    let itself = kubelet.plugin(NODE).await;
    itself.healthy(1).await;
    agent.ready().await;
    assert!(!kubelet.knows(GPU), "a node without GPUs announces none");

    node.write(PAPER);
    let gpus = kubelet.plugin(GPU).await;
    gpus.healthy(8).await;
    node.write(bare);
    gpus.healthy(0).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_container_gets_files_and_variables_for_its_devices() {
    let node = Node::new(PAPER);
    let mut kubelet = Kubelet::start(&node.plugins);
    let agent = node.agent();
    let gpus = kubelet.plugin(GPU).await;
    let all = gpus.devices().await;
    let mut ids: Vec<_> = all.iter().map(|device| device.id.as_str()).collect();
    ids.reverse();

    let preferred = gpus.prefer(&ids, &[ids[2]], 2).await.unwrap();
    assert_eq!(preferred, [all[4].id.as_str(), all[5].id.as_str()]);

    let given = gpus
        .allocate(&[preferred[1].as_str(), preferred[0].as_str()])
        .await
        .unwrap();
    assert_eq!(given.envs["NVIDIA_VISIBLE_DEVICES"], preferred.join(","));
    assert_eq!(given.envs["FIREFLYER_GPU_PAIRS"], "0-1");
    assert_eq!(given.mounts[0].container_path, "/dev/fireflyer/gpu4");
    let file = fs::read_to_string(&given.mounts[0].host_path).unwrap();
    assert!(file.contains(&preferred[0]), "{file}");

    for (ids, code) in [
        (vec![], Code::InvalidArgument),
        (vec!["GPU-unknown"], Code::NotFound),
        (vec![ids[0], ids[0]], Code::InvalidArgument),
    ] {
        assert_eq!(gpus.allocate(&ids).await.unwrap_err().code(), code);
    }
    let refused = gpus.prefer(&ids, &[], 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);

    let text = agent.metrics();
    for line in [
        "fireflyer_device_plugin_allocations_total{resource=\"nvidia.com/gpu\"} 1",
        "fireflyer_device_plugin_refused_total{call=\"Allocate\",resource=\"nvidia.com/gpu\"} 3",
        "fireflyer_device_plugin_devices{health=\"healthy\",resource=\"nvidia.com/gpu\"} 8",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_socket_left_by_a_dead_agent_is_removed_and_a_living_ones_is_not() {
    let node = Node::new(PAPER);
    let dead = node.plugins.join("fireflyer-gpu-1.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let living = node.plugins.join("fireflyer-gpu-2.sock");
    let listener = std::os::unix::net::UnixListener::bind(&living).unwrap();
    let mut kubelet = Kubelet::join(&node.plugins);
    let agent = node.agent();
    kubelet.plugin(GPU).await.healthy(8).await;
    assert!(!dead.exists() && living.exists());
    drop(listener);
    agent.stop().await;
}

#[tokio::test]
async fn hardware_that_cannot_be_read_at_the_start_ends_the_agent() {
    let node = Node::new("numaNodes: []");
    let error = node.agent().ended().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("node.yaml: numaNodes: a node has"), "{text}");
}
