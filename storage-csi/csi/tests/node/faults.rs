//! Drivers that are killed, volumes that stall, callers that leave.

use std::fs::{self, File};
use std::thread;

use fuse::Errno;
use tonic::Code;

use super::driver::{hold, mounting, stall};
use super::kubelet::{Node, is_dead, is_live, refused, wait_until};

pub(crate) fn a_dead_mount_is_replaced_for_a_new_pod() {
    let mut node = Node::start();
    let id = node.volume("volume");
    let old = node.give(&id, "old");
    let opened = File::create(old.join("file")).unwrap();
    node.kill();
    let error = fs::read_dir(&old).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTCONN));

    node.restart();
    // The kubelet does not stage again: another pod of the node has the volume.
    node.publish(node.publish_request(&id, "new")).unwrap();
    let new = node.pod("new");
    fs::write(new.join("file"), "lives").unwrap();
    assert!(is_live(&node.staging(&id), &id) && is_dead(&old));
    // The same pod again, as if its container were restarted by a kubelet that repeats itself.
    node.publish(node.publish_request(&id, "old")).unwrap();
    assert_eq!(fs::read_to_string(old.join("file")).unwrap(), "lives");
    drop(opened);
    node.stop(&id, &["old", "new"]);
}

pub(crate) fn dead_mounts_are_taken_away_although_files_of_them_are_open() {
    let mut node = Node::start();
    let id = node.volume("volume");
    let pod = node.give(&id, "pod");
    let opened = [pod, node.staging(&id)].map(|folder| File::create(folder.join("file")).unwrap());
    node.kill();
    node.restart();
    assert!(is_dead(&node.pod("pod")) && is_dead(&node.staging(&id)));
    let stats = node.stats(&id, &node.pod("pod"));
    refused(stats, Code::NotFound, "is not mounted at");
    node.stop(&id, &["pod"]);
    drop(opened);
}

pub(crate) fn a_stalled_volume_keeps_neither_figures_nor_other_volumes_waiting() {
    let node = Node::start();
    let (id, other) = (node.volume("stalled"), node.volume("other"));
    let pod = node.give(&id, "pod");
    let stall = stall(node.folder(), &id);
    fs::write(&stall, "").unwrap();
    let path = pod.clone();
    let hangs = thread::spawn(move || fs::metadata(path.join("file")).is_err());
    node.wait_for_requests(&id, 1);
    node.publish(node.publish_request(&id, "late")).unwrap();

    for path in [&pod, &node.staging(&id)] {
        assert_eq!(node.stats(&id, path).unwrap().len(), 2);
    }
    let busy = node.give(&other, "busy");
    fs::write(busy.join("file"), "goes on").unwrap();
    node.unpublish(&other, "busy").unwrap();
    node.unstage(&other).unwrap();
    assert!(!hangs.is_finished());

    fs::remove_file(stall).unwrap();
    assert!(hangs.join().unwrap());
    node.stop(&id, &["pod", "late"]);
}

/// A thread of the driver that waited for one of its own mounts would keep both alive for ever.
pub(crate) fn a_driver_that_is_killed_while_its_volume_stalls_ends_with_its_mounts() {
    let mut node = Node::start();
    let id = node.volume("stalled");
    let pod = node.give(&id, "pod");
    let stall = stall(node.folder(), &id);
    fs::write(&stall, "").unwrap();
    let path = pod.join("file");
    let hangs = thread::spawn(move || fs::metadata(path).unwrap_err());
    node.wait_for_requests(&id, 1);
    let calls: Vec<_> = (0..4)
        .map(|number| {
            let mut client = node.client.clone();
            let publish = node.publish_request(&id, &format!("pod-{number}"));
            node.runtime
                .spawn(async move { client.node_publish_volume(publish).await })
        })
        .collect();
    node.kill();
    let error = hangs.join().unwrap();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNABORTED));
    assert!(is_dead(&pod));
    for call in calls {
        // Done, or lost with the driver.
        node.runtime.block_on(call).unwrap().ok();
    }
    fs::remove_file(stall).unwrap();
    node.restart();
    node.stop(&id, &["pod", "pod-0", "pod-1", "pod-2", "pod-3"]);
}

pub(crate) fn a_call_goes_on_to_its_end_without_its_caller() {
    let node = Node::start();
    let id = node.volume("volume");
    let hold = hold(node.folder(), &id);
    fs::write(&hold, "").unwrap();
    let publish = |pod: &str| {
        let mut client = node.client.clone();
        let publish = node.publish_request(&id, pod);
        let call = async move { client.node_publish_volume(publish).await };
        node.runtime.spawn(call)
    };
    let call = publish("late");
    wait_until("the mount", || mounting(node.folder(), &id).exists());
    call.abort();
    assert!(node.runtime.block_on(call).unwrap_err().is_cancelled());
    // Answered after the driver has read, on the same connection, that nobody waits for the other.
    node.stats(&id, &node.pod("late")).unwrap_err();
    let next = publish("next");
    assert!(!node.pod("late").exists() && !node.pod("next").exists());
    fs::remove_file(hold).unwrap();
    node.runtime.block_on(next).unwrap().unwrap();
    let late = node.pod("late");
    assert!(is_live(&late, &id), "one call after the other");
    assert_eq!(node.mounts(), 3);
    node.stop(&id, &["late", "next"]);
}

pub(crate) fn an_aborted_mount_is_replaced_by_the_process_that_served_it() {
    let node = Node::start();
    let id = node.volume("volume");
    let pod = node.give(&id, "pod");
    let opened = [&pod, &node.staging(&id)].map(|at| File::create(at.join("file")).unwrap());
    node.abort(&id);
    assert!(is_dead(&pod) && is_dead(&node.staging(&id)));
    wait_until("its server's end", || node.stats(&id, &pod).is_err());
    assert_eq!(node.give(&id, "pod"), pod);
    fs::write(pod.join("file"), "lives").unwrap();
    assert_eq!(node.mounts(), 2);
    drop(opened);
    node.stop(&id, &["pod"]);
}
