//! Two GPUs of a pair, each on a stand-in of its own, as their two processes have them.

use super::gpu_tests::{BYTES, Fake, SEEDS, whole};
use super::tests::{Loopback, PATIENCE};
use super::*;
use crate::cuda::{self, CudaDevice, CudaEvent, DeviceMemory, GpuPair, Inbox, Sum, abi};
use crate::{DType, ReduceOp};

const HALF: usize = BYTES / 2;

/// A pair of GPUs with inboxes of two halves each.
fn joined(fakes: &[Fake; 2], seed: u64) -> [(Arc<CudaDevice>, GpuPair); 2] {
    let devices = [0, 1].map(|at| fakes[at].begin(seed * 2 + at as u64, true));
    let [one, other] = devices.each_ref().map(|device| {
        let inbox = Inbox::new(device, 2 * HALF).unwrap();
        let handle = inbox.handle().unwrap();
        (inbox, handle)
    });
    let handles = [other.1, one.1];
    let [one_device, other_device] = devices;
    [
        (one_device, GpuPair::join(one.0, handles[0]).unwrap()),
        (other_device, GpuPair::join(other.0, handles[1]).unwrap()),
    ]
}

fn half(tensor: u64, at: usize) -> DeviceMemory {
    DeviceMemory::of_owner(tensor + (at * HALF) as u64, HALF)
}

#[test]
fn each_gpu_adds_up_its_half_and_they_exchange_what_comes_of_it() {
    let fakes = [Fake::new(), Fake::new()];
    let sum = Sum::of(DType::U8, ReduceOp::Sum).unwrap();
    let (loopback, client) = Loopback::start(1 << 30);
    for seed in 0..SEEDS {
        let pairs = joined(&fakes, seed);
        let tensors = fakes.each_ref().map(|fake| fake.tensor(1));
        let sent = [0, 1].map(|at| {
            let (device, pair) = &pairs[at];
            let producer = fakes[at].stream();
            fakes[at].fill(producer, tensors[at], 3 + at as u8);
            let after = CudaEvent::on(device, producer).unwrap();
            pair.send(half(tensors[at], 1 - at), 0, Some(&after))
                .unwrap()
        });
        sent.iter().for_each(|event| event.wait().unwrap());
        for at in [0, 1] {
            let (_, pair) = &pairs[at];
            let arena = Arc::new(client.arena(HALF, PATIENCE).unwrap());
            let own = half(tensors[at], at);
            let mut fetched = pair.fetch(sum, own, 0, &arena, 0).unwrap();
            fetched.wait().unwrap();
            // SAFETY: mapped, and the copy is over.
            #[expect(unsafe_code, reason = "shared memory")]
            let brought = unsafe { std::slice::from_raw_parts(arena.start().as_ptr(), HALF) };
            assert!(brought.iter().all(|byte| *byte == 7), "seed {seed}");
        }
        // Back: what lies in the own half goes to the other's inbox, and from there to its place.
        let back = [0, 1].map(|at| {
            let (_, pair) = &pairs[at];
            pair.send(half(tensors[at], at), HALF, None).unwrap()
        });
        back.iter().for_each(|event| event.wait().unwrap());
        for at in [0, 1] {
            let consumer = fakes[at].stream();
            let target = half(tensors[at], 1 - at);
            let after = fakes[at].tensor(0);
            let arrived = pairs[at].1.receive(HALF, target).unwrap();
            arrived.gate(consumer).unwrap();
            fakes[at].copy(consumer, tensors[at], after);
            let read = fakes[at].read(after);
            let theirs = &read[(1 - at) * HALF..][..HALF];
            assert!(
                theirs.iter().all(|byte| *byte == 4 - at as u8),
                "seed {seed}"
            );
        }
    }
    loopback.finish(client);
    for fake in &fakes {
        assert_eq!(fake.alive(), 0);
    }
}

#[test]
fn what_is_not_in_an_inbox_is_refused() {
    let fakes = [Fake::new(), Fake::new()];
    let [(device, pair), _other] = joined(&fakes, 1);
    let tensor = fakes[0].tensor(1);
    let past = pair.send(whole(tensor), 1, None).unwrap_err();
    assert!(matches!(past, cuda::Error::Bounds { .. }), "{past}");
    let past = pair.receive(HALF + 1, half(tensor, 0)).unwrap_err();
    assert!(matches!(past, cuda::Error::Bounds { .. }), "{past}");
    let inbox = Inbox::new(&device, 10).unwrap();
    let nobody = abi::IpcHandle([0xFF; abi::IPC_HANDLE_BYTES]);
    let unknown = GpuPair::join(inbox, nobody).unwrap_err();
    assert!(
        unknown.to_string().contains("map memory of the other GPU"),
        "{unknown}"
    );
}

#[test]
fn types_without_a_kernel_are_known() {
    for dtype in DType::ALL {
        let without = matches!(dtype, DType::F64 | DType::I8 | DType::E4m3 | DType::E5m2);
        assert_eq!(Sum::of(dtype, ReduceOp::Sum).is_none(), without);
        assert_eq!(Sum::of(dtype, ReduceOp::Xor), None);
    }
}
