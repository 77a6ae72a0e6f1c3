//! Inputs and results that come from and go to a GPU, on a stand-in for its driver that runs everything late and in a
//! drawn order, against a sidecar of a few lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::tests::{Loopback, PATIENCE, bytes_of};
use super::*;
use crate::cuda::{self, Copy, CudaDevice, CudaLibrary, CudaStream, DeviceMemory};

#[path = "../../../link/tests/shared/built.rs"]
mod built;

const SOURCES: [&str; 5] = [
    "tests/fake_cuda/lib.rs",
    "tests/fake_cuda/kernels.rs",
    "tests/fake_cuda/memory.rs",
    "tests/fake_cuda/machine.rs",
    "src/cuda/abi.rs",
];
pub(super) const SEEDS: u64 = 200;
/// Of a tensor, and of the part of the arena before it.
pub(super) const BYTES: usize = 5000;
const OFFSET: usize = 128;

/// The stand-in, with functions of its own by which tests act as PyTorch does.
pub(super) struct Fake {
    library: Arc<CudaLibrary>,
    seed: unsafe extern "C" fn(u64, i32),
    alloc: unsafe extern "C" fn(usize, u8) -> u64,
    stream: unsafe extern "C" fn() -> u64,
    fill: unsafe extern "C" fn(u64, u64, usize, u8),
    copy: unsafe extern "C" fn(u64, u64, u64, usize),
    read: unsafe extern "C" fn(u64, *mut u8, usize),
    capture: unsafe extern "C" fn(u64, i32),
    alive: unsafe extern "C" fn() -> u64,
    blocking_stream: unsafe extern "C" fn() -> u64,
    spin: unsafe extern "C" fn(u64) -> u64,
    end: unsafe extern "C" fn(u64),
    synchronize: unsafe extern "C" fn(i32),
    waiting: unsafe extern "C" fn() -> u64,
    refuse: unsafe extern "C" fn(),
    _folder: tempfile::TempDir,
}

#[expect(unsafe_code, reason = "the stand-in's own functions")]
impl Fake {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let copy: PathBuf = folder.path().join("libfake.so");
        fs::copy(built::built("libfake_cuda.so", &SOURCES), &copy).unwrap();
        let library = CudaLibrary::load(Some(&copy)).unwrap();
        // SAFETY: loaded before; types and names are those of the file's source.
        unsafe {
            let loaded = libloading::Library::new(&copy).unwrap();
            let fake = Self {
                library,
                seed: *loaded.get("fake_seed").unwrap(),
                alloc: *loaded.get("fake_alloc").unwrap(),
                stream: *loaded.get("fake_stream").unwrap(),
                fill: *loaded.get("fake_fill").unwrap(),
                copy: *loaded.get("fake_copy").unwrap(),
                read: *loaded.get("fake_read").unwrap(),
                capture: *loaded.get("fake_capture").unwrap(),
                alive: *loaded.get("fake_alive").unwrap(),
                blocking_stream: *loaded.get("fake_blocking_stream").unwrap(),
                spin: *loaded.get("fake_spin").unwrap(),
                end: *loaded.get("fake_end").unwrap(),
                synchronize: *loaded.get("fake_synchronize").unwrap(),
                waiting: *loaded.get("fake_waiting").unwrap(),
                refuse: *loaded.get("fake_refuse").unwrap(),
                _folder: folder,
            };
            std::mem::forget(loaded);
            fake
        }
    }

    pub(super) fn begin(&self, seed: u64, reads_only: bool) -> Arc<CudaDevice> {
        // SAFETY: takes any numbers.
        unsafe { (self.seed)(seed, i32::from(reads_only)) };
        CudaDevice::open(Arc::clone(&self.library), 0).unwrap()
    }

    pub(super) fn tensor(&self, value: u8) -> u64 {
        // SAFETY: as above.
        unsafe { (self.alloc)(BYTES, value) }
    }

    pub(super) fn stream(&self) -> CudaStream {
        // SAFETY: takes nothing.
        CudaStream::of_owner(unsafe { (self.stream)() })
    }

    pub(super) fn fill(&self, stream: CudaStream, tensor: u64, value: u8) {
        // SAFETY: a stream and memory of the stand-in's.
        unsafe { (self.fill)(stream.number(), tensor, BYTES, value) };
    }

    pub(super) fn copy(&self, stream: CudaStream, source: u64, target: u64) {
        // SAFETY: as above.
        unsafe { (self.copy)(stream.number(), source, target, BYTES) };
    }

    pub(super) fn read(&self, tensor: u64) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        // SAFETY: as above, and memory of our own.
        unsafe { (self.read)(tensor, bytes.as_mut_ptr(), BYTES) };
        bytes
    }

    fn capture(&self, stream: CudaStream, captures: bool) {
        // SAFETY: as above.
        unsafe { (self.capture)(stream.number(), i32::from(captures)) };
    }

    pub(super) fn alive(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { (self.alive)() }
    }

    fn blocking_stream(&self) -> CudaStream {
        // SAFETY: takes nothing.
        CudaStream::of_owner(unsafe { (self.blocking_stream)() })
    }

    /// A kernel that runs until `end`.
    fn spin(&self, stream: CudaStream) -> u64 {
        // SAFETY: a stream of the stand-in's.
        unsafe { (self.spin)(stream.number()) }
    }

    fn end(&self, kernel: u64) {
        // SAFETY: takes any number.
        unsafe { (self.end)(kernel) };
    }

    /// Whether functions that may wait for the whole device do, from here on.
    fn synchronize(&self, always: bool) {
        // SAFETY: takes any number.
        unsafe { (self.synchronize)(i32::from(always)) };
    }

    /// Threads that wait for the whole device.
    fn waiting(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { (self.waiting)() }
    }

    /// Refuses memory that is mapped for reading from here on.
    fn refuse(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.refuse)() };
    }
}

pub(super) fn whole(tensor: u64) -> DeviceMemory {
    DeviceMemory::of_owner(tensor, BYTES)
}

/// One operation as PyTorch's backend makes it: from a tensor that a kernel fills, to another that earlier kernels
/// still read, whose content kernels of a third stream then use.
fn reduce(fake: &Fake, client: &Client, device: &Arc<CudaDevice>) {
    let arena = Arc::new(client.arena(OFFSET + BYTES, PATIENCE).unwrap());
    let (producer, consumer) = (fake.stream(), fake.stream());
    let [source, target, before, after] = [1, 2, 3, 4].map(|value| fake.tensor(value));
    fake.fill(producer, source, 7);
    fake.copy(producer, target, before);
    let mut fetched = Copy::to_host(device, &[whole(source)], &arena, OFFSET, producer).unwrap();
    fetched.is_over().unwrap();
    fetched.wait().unwrap();
    assert!(fetched.is_over().unwrap());
    let ticket = client
        .submit_at(client.world(), bytes_of(BYTES), &arena, OFFSET, PATIENCE)
        .unwrap();
    let result = client.wait(ticket, PATIENCE).unwrap().result;
    let delivered = Copy::to_device(device, result, &arena, OFFSET, &[(0, whole(target))]).unwrap();
    delivered.gate(consumer).unwrap();
    fake.copy(consumer, target, after);
    // Waits by itself.
    drop(delivered);
    let holds = |tensor, value| fake.read(tensor).iter().all(|byte| *byte == value);
    assert!(
        holds(after, 7),
        "who reads waits for the copy, and that for who fills"
    );
    assert!(holds(before, 2), "the copy waits for who read before");
}

#[test]
fn tensors_of_a_gpu_are_reduced_whatever_order_its_streams_run_in() {
    let fake = Fake::new();
    for reads_only in [true, false] {
        let (loopback, client) = Loopback::start(1 << 30);
        for seed in 0..SEEDS {
            let device = fake.begin(seed, reads_only);
            assert_eq!(device.reads_only(), reads_only);
            reduce(&fake, &client, &device);
        }
        loopback.finish(client);
        assert_eq!(
            fake.alive(),
            0,
            "registrations, events and contexts are gone"
        );
    }
}

/// Parts of a tensor that lie apart go in together, and parts of a result to places that lie apart.
#[test]
fn what_lies_apart_goes_in_together_and_comes_back_to_its_places() {
    const HALF: usize = BYTES / 2;
    let fake = Fake::new();
    for reads_only in [true, false] {
        let (loopback, client) = Loopback::start(1 << 30);
        for seed in 0..SEEDS {
            let device = fake.begin(seed, reads_only);
            let arena = Arc::new(client.arena(BYTES, PATIENCE).unwrap());
            let (producer, consumer) = (fake.stream(), fake.stream());
            let [one, other, target] = [1, 2, 3].map(|value| fake.tensor(value));
            fake.fill(producer, one, 7);
            fake.fill(producer, other, 9);
            let half = |tensor| DeviceMemory::of_owner(tensor, HALF);
            let halves = [half(one), half(other)];
            let fetched = Copy::to_host(&device, &halves, &arena, 0, producer);
            fetched.unwrap().wait().unwrap();
            let ticket = client
                .submit_at(client.world(), bytes_of(BYTES), &arena, 0, PATIENCE)
                .unwrap();
            let result = client.wait(ticket, PATIENCE).unwrap().result;
            // The halves change places.
            let upper = DeviceMemory::of_owner(target + HALF as u64, HALF);
            let places = [(HALF, half(target)), (0, upper)];
            let delivered = Copy::to_device(&device, result, &arena, 0, &places).unwrap();
            delivered.gate(consumer).unwrap();
            drop(delivered);
            let read = fake.read(target);
            assert!(read[..HALF].iter().all(|byte| *byte == 9), "seed {seed}");
            assert!(read[HALF..].iter().all(|byte| *byte == 7), "seed {seed}");
        }
        loopback.finish(client);
    }
}

#[test]
fn a_result_that_is_shorter_than_its_place_is_refused() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    let device = fake.begin(1, true);
    let arena = Arc::new(client.arena(BYTES, PATIENCE).unwrap());
    let target = fake.tensor(1);
    let ticket = client
        .submit_at(client.world(), bytes_of(BYTES), &arena, 0, PATIENCE)
        .unwrap();
    let result = client.wait(ticket, PATIENCE).unwrap().result;
    let refused = Copy::to_device(&device, result, &arena, 0, &[(1, whole(target))]);
    let refused = refused.unwrap_err();
    assert!(matches!(refused, cuda::Error::Bounds { .. }), "{refused}");
    drop((arena, device));
    loopback.finish(client);
}

#[test]
fn a_captured_graph_is_refused_with_what_to_do() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    let device = fake.begin(1, true);
    let arena = Arc::new(client.arena(BYTES, PATIENCE).unwrap());
    let (source, stream) = (fake.tensor(1), fake.stream());
    fake.capture(stream, true);
    let refused = Copy::to_host(&device, &[whole(source)], &arena, 0, stream).unwrap_err();
    assert!(matches!(refused, cuda::Error::Capturing), "{refused}");
    assert!(refused.to_string().contains("outside of torch.cuda.graph"));
    fake.capture(stream, false);
    let copy = Copy::to_host(&device, &[whole(source)], &arena, 0, stream).unwrap();
    fake.capture(stream, true);
    assert!(matches!(copy.gate(stream), Err(cuda::Error::Capturing)));
    drop((copy, arena, device));
    loopback.finish(client);
}

#[test]
fn what_cannot_be_copied_is_refused_with_the_reason() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    let device = fake.begin(1, true);
    let arena = Arc::new(client.arena(BYTES, PATIENCE).unwrap());
    let stream = fake.stream();
    let nowhere = Copy::to_host(&device, &[whole(12345)], &arena, 0, stream).unwrap_err();
    assert!(
        nowhere
            .to_string()
            .contains("copy from the GPU: CUDA says invalid argument (1)"),
        "{nowhere}"
    );
    let source = fake.tensor(1);
    let two = [DeviceMemory::of_owner(source, 2)];
    let past = Copy::to_host(&device, &two, &arena, arena.len() - 1, stream).unwrap_err();
    assert!(matches!(past, cuda::Error::Bounds { .. }), "{past}");
    let none = CudaDevice::open(Arc::clone(&fake.library), 3).unwrap_err();
    assert!(none.to_string().contains("no such device"), "{none}");
    drop((arena, device));
    loopback.finish(client);
    assert_eq!(fake.alive(), 0);
    let missing = CudaLibrary::load(Some(Path::new("/nonexistent/libcuda.so.1"))).unwrap_err();
    assert!(
        missing.to_string().contains("container runtime"),
        "{missing}"
    );
}

#[test]
fn memory_stays_until_a_copy_is_over_whoever_drops_it_first() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    for seed in 0..SEEDS {
        let device = fake.begin(seed, true);
        let arena = Arc::new(client.arena(BYTES, PATIENCE).unwrap());
        let (source, stream) = (fake.tensor(1), fake.stream());
        let copy = Copy::to_host(&device, &[whole(source)], &arena, 0, stream).unwrap();
        // The stand-in would see memory unregistered under a copy.
        drop((arena, device));
        drop(copy);
    }
    loopback.finish(client);
    assert_eq!(fake.alive(), 0);
}

#[test]
fn while_the_driver_lets_go_of_a_result_other_threads_use_the_client() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    let device = fake.begin(1, true);
    let arena = Arc::new(client.arena(BYTES, PATIENCE).unwrap());
    let target = fake.tensor(1);
    let ticket = client
        .submit_at(client.world(), bytes_of(BYTES), &arena, 0, PATIENCE)
        .unwrap();
    let result = client.wait(ticket, PATIENCE).unwrap().result;
    let copy = Copy::to_device(&device, result, &arena, 0, &[(0, whole(target))]).unwrap();
    fake.synchronize(true);
    let kernel = fake.spin(fake.stream());
    // The copy lets go of the result, which the sidecar then says is gone.
    drop(copy);
    let is_over = AtomicBool::new(false);
    let (answered, answers) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                client.members(PATIENCE).unwrap();
            }
        });
        let start = Instant::now();
        while fake.waiting() == 0 {
            assert!(start.elapsed() < PATIENCE, "nobody lets go of it");
            std::thread::yield_now();
        }
        scope.spawn(|| answered.send(client.members(PATIENCE).is_ok()).unwrap());
        let answer = answers.recv_timeout(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
        fake.end(kernel);
        assert_eq!(answer, Ok(true));
    });
    drop((arena, device));
    loopback.finish(client);
    assert_eq!(fake.alive(), 0);
}

#[test]
fn a_result_that_the_driver_refuses_to_register_is_copied() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    for seed in 0..SEEDS {
        let device = fake.begin(seed, true);
        fake.refuse();
        reduce(&fake, &client, &device);
    }
    loopback.finish(client);
}

#[test]
fn work_of_the_default_stream_is_ordered_with_that_of_blocking_streams_only() {
    let fake = Fake::new();
    let default = CudaStream::of_owner(0);
    let [blocking, other] = [fake.blocking_stream(), fake.stream()];
    let mut early = 0;
    for seed in 0..SEEDS {
        drop(fake.begin(seed, true));
        let [one, two, after_one, after_two] = [1, 2, 3, 4].map(|value| fake.tensor(value));
        fake.fill(other, two, 7);
        fake.copy(default, two, after_two);
        fake.fill(blocking, one, 7);
        fake.copy(default, one, after_one);
        fake.fill(blocking, one, 9);
        assert_eq!(fake.read(after_one), [7; BYTES], "seed {seed}");
        early += u32::from(fake.read(after_two) == [2; BYTES]);
    }
    assert!(early > 0, "the default stream waits for a non-blocking one");
}

/// A collective in two parts.
fn begin(
    client: &Client,
    device: &Arc<CudaDevice>,
    (source, target): (u64, u64),
    producer: CudaStream,
) -> (Arc<GpuCollective>, GpuParts) {
    const HALF: usize = BYTES / 2;
    let arena = Arc::new(client.arena(2 * ARENA, PATIENCE).unwrap());
    let half = |tensor, index: u64| DeviceMemory::of_owner(tensor + index * HALF as u64, HALF);
    let part = |index: u64| GpuPart {
        call: bytes_of(HALF),
        sources: vec![half(source, index)],
        targets: vec![(0, half(target, index))],
        offset: index as usize * ARENA,
    };
    let (group, parts) = (client.world(), vec![part(0), part(1)]);
    GpuCollective::begin(client, group, device, &arena, parts, producer, PATIENCE).unwrap()
}

const ARENA: usize = 4096;

#[test]
fn a_collective_goes_there_and_back_in_parts_whatever_order_streams_run_in() {
    let fake = Fake::new();
    for reads_only in [true, false] {
        let (loopback, client) = Loopback::start(1 << 30);
        for seed in 0..SEEDS {
            let device = fake.begin(seed, reads_only);
            // Training runs on the default stream, or on one of its own.
            let stream = |index| match (seed + index) % 2 {
                0 => CudaStream::of_owner(0),
                _ => fake.stream(),
            };
            let (producer, consumer) = (stream(0), stream(1));
            let [source, target, after] = [1, 2, 3].map(|value| fake.tensor(value));
            fake.fill(producer, source, 7);
            let (collective, parts) = begin(&client, &device, (source, target), producer);
            std::thread::scope(|scope| {
                // Whoever is given the input's memory next writes to it.
                scope.spawn(|| parts.call(|| fake.fill(producer, source, 9)));
                collective.called(PATIENCE).unwrap();
                collective.finish(PATIENCE).unwrap();
            });
            collective.gate(consumer).unwrap();
            fake.copy(consumer, target, after);
            collective.settle().unwrap();
            drop((collective, device));
            assert_eq!(fake.read(after), [7; BYTES], "seed {seed}");
        }
        loopback.finish(client);
        assert_eq!(fake.alive(), 0);
    }
}

#[test]
fn a_result_comes_while_the_next_input_waits_for_its_kernel() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    for seed in 0..SEEDS {
        let device = fake.begin(seed, true);
        // As when all memory is registered already.
        fake.synchronize(false);
        let (producer, consumer) = (fake.stream(), fake.stream());
        let [source, target, after] = [1, 2, 3].map(|value| fake.tensor(value));
        fake.fill(producer, source, 7);
        let (first, first_parts) = begin(&client, &device, (source, target), producer);
        // The backward pass goes on, and the next collective's input is its last kernel's.
        let kernel = fake.spin(producer);
        let next = fake.tensor(4);
        let (second, second_parts) = begin(&client, &device, (next, next), producer);
        first_parts.call(|| ());
        first.finish(PATIENCE).unwrap();
        first.gate(consumer).unwrap();
        fake.copy(consumer, target, after);
        assert_eq!(fake.read(after), [7; BYTES], "seed {seed}");
        let late = second.called(Duration::ZERO).unwrap_err();
        assert!(late.is_late(), "{late}");
        assert!(
            late.to_string().contains("has not come from the GPU"),
            "{late}"
        );
        fake.end(kernel);
        second_parts.call(|| ());
        second.finish(PATIENCE).unwrap();
    }
    loopback.finish(client);
    assert_eq!(fake.alive(), 0);
}

#[test]
fn parts_that_nobody_calls_any_more_are_an_error() {
    let fake = Fake::new();
    let (loopback, client) = Loopback::start(1 << 30);
    let device = fake.begin(1, true);
    let tensor = fake.tensor(1);
    let (collective, parts) = begin(&client, &device, (tensor, tensor), fake.stream());
    let late = collective.finish(Duration::ZERO).unwrap_err();
    assert!(late.is_late(), "{late}");
    drop(parts);
    let error = collective.finish(PATIENCE).unwrap_err();
    assert!(error.to_string().contains("thread"), "{error}");
    // As if it had not arrived: there is nothing to wait for.
    collective.gate(fake.stream()).unwrap();
    collective.settle().unwrap();
    drop((collective, device));
    loopback.finish(client);
    assert_eq!(fake.alive(), 0);
}
