//! What containers get on the paper's node.

use super::*;
use crate::testing::{gpu, inventory};

fn gpus_of(indices: &[usize]) -> Vec<String> {
    indices.iter().map(|index| gpu(*index)).collect()
}

fn slots_of(numbers: &[u16]) -> Vec<String> {
    let slot = |number: &u16| slot_id("mlx5_0", 1, *number);
    numbers.iter().map(slot).collect()
}

fn request(available: &[usize], must: &[usize], size: i32) -> ContainerPreferredAllocationRequest {
    ContainerPreferredAllocationRequest {
        available: gpus_of(available),
        must_include: gpus_of(must),
        allocation_size: size,
    }
}

#[test]
fn gpus_come_in_the_order_of_the_bus_whatever_the_order_asked() {
    let given = allocate(Resource::Gpu, &inventory(), &gpus_of(&[6, 4, 5])).unwrap();
    assert_eq!(
        given.envs[ENV_VISIBLE_DEVICES],
        gpus_of(&[4, 5, 6]).join(",")
    );
    assert_eq!(given.envs[ENV_GPU_PAIRS], "0-1");
    assert_eq!(given.envs[ENV_ROOT_PORT_SHARED], "1-2");
    let paths: Vec<_> = given
        .mounts
        .iter()
        .map(|m| m.container_path.as_str())
        .collect();
    let expected = [
        "/dev/fireflyer/gpu4",
        "/dev/fireflyer/gpu5",
        "/dev/fireflyer/gpu6",
    ];
    assert_eq!(paths, expected);
    assert!(given.mounts.iter().all(|mount| mount.read_only));
}

#[test]
fn the_whole_node_has_every_pair() {
    let given = allocate(
        Resource::Gpu,
        &inventory(),
        &gpus_of(&[0, 1, 2, 3, 4, 5, 6, 7]),
    )
    .unwrap();
    assert_eq!(given.envs[ENV_GPU_PAIRS], "0-1,2-3,4-5,6-7");
    assert_eq!(given.envs[ENV_ROOT_PORT_SHARED], "5-6");
}

#[test]
fn slots_of_one_adapter_are_one_mount() {
    let given = allocate(Resource::Rdma, &inventory(), &slots_of(&[7, 2])).unwrap();
    assert_eq!(given.envs[ENV_NCCL_IB_HCA], "=mlx5_0:1");
    assert_eq!(given.envs[ENV_NCCL_RELAXED_ORDERING], "1");
    assert_eq!(given.mounts.len(), 1);
    assert_eq!(given.mounts[0].container_path, "/dev/fireflyer/mlx5_0-1");
}

#[test]
fn the_node_itself_brings_nothing_into_the_container() {
    let given = allocate(Resource::Node, &inventory(), &["node".to_owned()]).unwrap();
    assert_eq!(given, ContainerAllocateResponse::default());
}

#[test]
fn a_wrong_allocation_is_refused_with_the_device_and_the_code() {
    let mut inventory = inventory();
    inventory
        .faults
        .insert(gpu(3), "fell off the bus".to_owned());
    let refused = |ids: &[String]| {
        let status = Status::from(allocate(Resource::Gpu, &inventory, ids).unwrap_err());
        (status.code(), status.message().to_owned())
    };
    assert_eq!(
        refused(&[]),
        (
            tonic::Code::InvalidArgument,
            "a container asks for no device of nvidia.com/gpu; ask for at least one".to_owned()
        )
    );
    assert_eq!(
        refused(&["GPU-x\n".to_owned()]),
        (
            tonic::Code::NotFound,
            "this node has no device GPU-x\\n of nvidia.com/gpu; it has 8".to_owned()
        )
    );
    assert_eq!(
        refused(&gpus_of(&[1, 1])),
        (
            tonic::Code::InvalidArgument,
            format!("device {} of nvidia.com/gpu is named twice", gpu(1))
        )
    );
    assert_eq!(
        refused(&gpus_of(&[2, 3])),
        (
            tonic::Code::FailedPrecondition,
            format!(
                "device {} of nvidia.com/gpu is broken: fell off the bus",
                gpu(3)
            )
        )
    );
}

#[test]
fn a_preference_is_a_pair_and_spares_a_broken_gpu() {
    let mut inventory = inventory();
    let prefer_two = |inventory: &Inventory| {
        prefer(Resource::Gpu, inventory, &request(&[3, 2, 1, 0], &[], 2)).unwrap()
    };
    assert_eq!(prefer_two(&inventory), gpus_of(&[0, 1]));
    inventory.faults.insert(gpu(0), "ECC".to_owned());
    assert_eq!(prefer_two(&inventory), gpus_of(&[2, 3]));
}

#[test]
fn a_wrong_question_is_refused_with_the_reason() {
    let refused = |resource, request| {
        let status = Status::from(prefer(resource, &inventory(), &request).unwrap_err());
        (status.code(), status.message().to_owned())
    };
    for size in [0, -1] {
        let (code, message) = refused(Resource::Gpu, request(&[0, 1], &[], size));
        assert_eq!(code, tonic::Code::InvalidArgument);
        assert!(
            message.contains(&format!("choose {size} devices")),
            "{message}"
        );
    }
    let (code, message) = refused(Resource::Gpu, request(&[0, 1], &[2], 1));
    assert_eq!(code, tonic::Code::InvalidArgument);
    assert!(message.contains("GPU 2 must be in the answer"), "{message}");

    let (code, message) = refused(Resource::Gpu, request(&[0, 0], &[], 1));
    assert_eq!(code, tonic::Code::InvalidArgument);
    assert!(message.contains("named twice"), "{message}");

    let (code, _) = refused(Resource::Node, request(&[], &[], 1));
    assert_eq!(code, tonic::Code::Unimplemented);
}
