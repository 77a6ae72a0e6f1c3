//! What pods see, and what is mounted for them.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use csi::pb::csi::VolumeUsage;
use csi::pb::csi::volume_capability::access_mode::Mode;
use csi::pb::csi::volume_usage::Unit;
use fuse::mount::{MountState, Unmount};
use rustix::mount::MountFlags;
use tonic::Code;

use super::driver::USED_BYTES;
use super::kubelet::{Node, capability, is_live, refused};

pub(crate) fn pods_share_a_volume_that_is_mounted_once_on_their_node() {
    let node = Node::start();
    let id = node.volume("shared");
    let [one, two] = ["one", "two"].map(|pod| node.give(&id, pod));
    fs::write(one.join("file"), "from one").unwrap();
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "from one");
    for pod in ["one", "two"] {
        node.give(&id, pod);
    }
    assert_eq!(node.mounts(), 3, "a staging folder and two pods");
    node.unpublish(&id, "one").unwrap();
    assert!(!one.exists() && is_live(&two, &id));
    // Others' pods go on, and what was done may be done again.
    node.stop(&id, &["one", "two"]);
}

fn is_read_only(result: io::Result<()>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

pub(crate) fn a_pod_that_asked_for_reading_cannot_write() {
    let node = Node::start();
    let id = node.volume("read");
    let writer = node.give(&id, "writer");
    let mut request = node.publish_request(&id, "reader");
    request.readonly = true;
    let reader = node.pod("reader");
    node.publish(request.clone()).unwrap();
    fs::write(writer.join("file"), "written").unwrap();
    assert_eq!(fs::read_to_string(reader.join("file")).unwrap(), "written");
    assert!(is_read_only(fs::write(reader.join("file"), "no")));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains("pods/reader "))
        .unwrap();
    assert!(line.contains(" ro,nosuid,nodev"), "{line}");

    node.publish(request.clone()).unwrap();
    let mut writes = request.clone();
    writes.readonly = false;
    refused(
        node.publish(writes),
        Code::AlreadyExists,
        "is read-only, and a writable mount was asked",
    );
    // As a call leaves it that ended between its two steps.
    node.unpublish(&id, "reader").unwrap();
    fs::create_dir(&reader).unwrap();
    rustix::mount::mount_bind(&writer, &reader).unwrap();
    let mut open = File::create(reader.join("open")).unwrap();
    refused(
        node.publish(request.clone()),
        Code::Internal,
        "make read-only",
    );
    io::Write::write_all(&mut open, b"goes on").unwrap();
    drop(open);
    node.publish(request).unwrap();
    assert!(is_read_only(fs::write(reader.join("file"), "no")));
    fs::write(writer.join("file"), "yes").unwrap();
    node.stop(&id, &["reader", "writer"]);
}

pub(crate) fn a_volume_for_readers_is_written_by_nobody() {
    let node = Node::start();
    let id = node.volume("readers");
    node.stage(&id, Mode::MultiNodeReaderOnly).unwrap();
    let mut request = node.publish_request(&id, "reader");
    request.volume_capability = Some(capability(Mode::MultiNodeReaderOnly));
    node.publish(request).unwrap();
    for folder in [node.staging(&id), node.pod("reader")] {
        assert!(is_read_only(fs::create_dir(folder.join("new"))));
    }
    let staged = node.stage(&id, Mode::MultiNodeMultiWriter);
    refused(
        staged,
        Code::AlreadyExists,
        "is read-only, and a writable mount was asked",
    );
    node.stop(&id, &["reader"]);
}

pub(crate) fn a_volume_for_one_pod_is_refused_to_a_second() {
    let node = Node::start();
    let id = node.volume("alone");
    let request = |pod: &str| {
        let mut request = node.publish_request(&id, pod);
        request.volume_capability = Some(capability(Mode::SingleNodeSingleWriter));
        request
    };
    node.stage(&id, Mode::SingleNodeSingleWriter).unwrap();
    for _ in 0..2 {
        node.publish(request("one")).unwrap();
        let refusal = node.publish(request("two"));
        refused(refusal, Code::FailedPrecondition, "pods/one already");
    }
    assert!(!node.pod("two").exists());
    node.unpublish(&id, "one").unwrap();
    node.publish(request("two")).unwrap();
    node.stop(&id, &["two"]);
}

pub(crate) fn mounts_of_others_are_left_alone() {
    let node = Node::start();
    let (id, other) = (node.volume("mine"), node.volume("other"));
    let pod = node.pod("pod");
    for folder in [&pod, &node.staging(&id)] {
        fs::create_dir(folder).unwrap();
        rustix::mount::mount("tmpfs", folder, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(folder.join("file"), "theirs").unwrap();
    }
    let foreign = |result| refused(result, Code::FailedPrecondition, "of type tmpfs");
    foreign(node.stage(&id, Mode::MultiNodeMultiWriter));
    foreign(node.unstage(&id));
    fuse::mount::unmount(&node.staging(&id), Unmount::WhenUnused).unwrap();
    foreign(node.publish(node.publish_request(&id, "pod")));
    foreign(node.unpublish(&id, "pod"));
    assert_eq!(fs::read_to_string(pod.join("file")).unwrap(), "theirs");
    fuse::mount::unmount(&pod, Unmount::WhenUnused).unwrap();

    node.give(&other, "pod");
    let taken = |result| refused(result, Code::FailedPrecondition, &other);
    taken(node.publish(node.publish_request(&id, "pod")));
    taken(node.unpublish(&id, "pod"));
    assert!(is_live(&pod, &other));
    node.unpublish(&other, "pod").unwrap();
    node.unstage(&other).unwrap();

    // A mount is made at no link's end, and not in the place of a file.
    let elsewhere = node.folder().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &pod).unwrap();
    let publish = || node.publish(node.publish_request(&id, "pod"));
    refused(
        publish(),
        Code::FailedPrecondition,
        "pods/pod is no folder; remove it",
    );
    fs::remove_file(&pod).unwrap();
    fs::write(&pod, "").unwrap();
    refused(
        publish(),
        Code::FailedPrecondition,
        "pods/pod is no folder; remove it",
    );
    fs::remove_file(&pod).unwrap();
    node.stop(&id, &[]);
}

pub(crate) fn a_mount_that_is_used_is_not_taken_away() {
    let node = Node::start();
    let id = node.volume("used");
    let pod = node.give(&id, "pod");
    let file = File::create(pod.join("file")).unwrap();
    let staged = File::create(node.staging(&id).join("staged")).unwrap();
    refused(
        node.unpublish(&id, "pod"),
        Code::FailedPrecondition,
        "it is in use",
    );
    refused(node.unstage(&id), Code::Internal, "it is in use");
    assert!(is_live(&pod, &id) && is_live(&node.staging(&id), &id));
    drop((file, staged));
    node.stop(&id, &["pod"]);
}

pub(crate) fn calls_at_once_make_one_mount() {
    let node = Node::start();
    let id = node.volume("busy");
    let pods = ["a", "b", "c", "d"];
    node.runtime.block_on(async {
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..32 {
            let mut client = node.client.clone();
            let stage = node.stage_request(&id, Mode::MultiNodeMultiWriter);
            let publish = node.publish_request(&id, pods[number % pods.len()]);
            calls.spawn(async move {
                client.node_stage_volume(stage).await?;
                client.node_publish_volume(publish).await
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
    });
    assert_eq!(node.mounts(), 1 + pods.len());
    for pod in pods {
        assert!(is_live(&node.pod(pod), &id));
    }
    node.stop(&id, &pods);
}

pub(crate) fn figures_are_those_of_the_mounter() {
    let node = Node::start();
    let (id, other) = (node.volume("full"), node.volume("other"));
    let pod = node.give(&id, "pod");
    let usage = |available: u64, total: u64, used: u64, unit: Unit| VolumeUsage {
        available: available as i64,
        total: total as i64,
        used: used as i64,
        unit: unit.into(),
    };
    let expected = [
        usage((1 << 30) - USED_BYTES, 1 << 30, USED_BYTES, Unit::Bytes),
        usage(0, 0, 1, Unit::Inodes),
    ];
    for path in [pod.clone(), node.staging(&id)] {
        assert_eq!(node.stats(&id, &path).unwrap(), expected);
    }
    let absent =
        |id: &str, path: &Path| refused(node.stats(id, path), Code::NotFound, "is not mounted at");
    absent(&other, &pod);
    absent(&id, &node.pod("none"));
    node.unpublish(&id, "pod").unwrap();
    absent(&id, &pod);
    assert_eq!(fuse::mount::state(&pod).unwrap(), MountState::Absent);
    node.stop(&id, &[]);
}
