//! Collectives of tensors on a GPU, as Python begins and ends them. Owns the thread that calls a group's operations, in the
//! order in which they were begun, as the inputs come from the GPU: it does not need the interpreter.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use hfreduce_client::client::{self, Error, GpuPart, GpuParts};
use hfreduce_client::cuda::{CudaStream, DeviceMemory};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::call::Call;
use crate::client::{Client, Group, WHOM, seconds};
use crate::error::raise;
use crate::gpu::Gpu;
use crate::limits::QUEUE;
use crate::memory;
use crate::waiting::{interruptibly, interruptibly_or};

/// What the thread does next.
enum Turn {
    /// Calls the parts of a collective, and lets go of the tensors that were read.
    Parts(GpuParts, Vec<Py<PyAny>>),
    /// Runs a function of Python's.
    Function(Py<PyAny>),
}

/// A part as Python describes it: the call; address and bytes of what is read; places in the result, addresses and bytes of
/// what is written; its offset in the arena.
type Part = (Call, Vec<(u64, usize)>, Vec<(usize, u64, usize)>, usize);

/// The collectives of a group's tensors on GPUs.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct GpuQueue {
    client: client::Client,
    group: client::Group,
    turns: SyncSender<Turn>,
}

#[pymethods]
impl GpuQueue {
    /// Those of the world, unless a `group` is given.
    #[new]
    #[pyo3(signature = (client, group = None))]
    fn new(client: &Client, group: Option<&Bound<'_, Group>>) -> PyResult<Self> {
        let client = client.inner.clone();
        let group = group.map_or_else(|| client.world(), |group| group.get().0);
        let (turns, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("hfreduce-gpu".to_owned())
            .spawn(move || take(&receiver))
            .map_err(|error| PyOSError::new_err(format!("failed to start a thread: {error}")))?;
        Ok(Self {
            client,
            group,
            turns,
        })
    }

    /// Begins a collective behind everything that `stream` was given so far. `inputs` own what the parts read: they are
    /// kept until it was read.
    #[expect(clippy::too_many_arguments, reason = "a call of Python's")]
    fn begin(
        &self,
        py: Python<'_>,
        gpu: &Gpu,
        parts: Vec<Part>,
        arena: &memory::Arena,
        stream: u64,
        inputs: Vec<Py<PyAny>>,
        timeout: f64,
    ) -> PyResult<GpuCollective> {
        let timeout = seconds(timeout)?;
        let parts = parts.into_iter().map(part).collect();
        let (device, arena, stream) = (&gpu.0, &arena.0, CudaStream::of_owner(stream));
        let (client, group) = (&self.client, self.group);
        let begun = py.detach(|| {
            client::GpuCollective::begin(client, group, device, arena, parts, stream, timeout)
        });
        let (collective, parts) = begun.map_err(|error| raise(py, &error))?;
        self.push(py, Turn::Parts(parts, inputs), timeout)?;
        Ok(GpuCollective(collective))
    }

    /// Runs `function` in its turn.
    fn run(&self, py: Python<'_>, function: Py<PyAny>, timeout: f64) -> PyResult<()> {
        self.push(py, Turn::Function(function), seconds(timeout)?)
    }
}

impl GpuQueue {
    fn push(&self, py: Python<'_>, turn: Turn, timeout: Duration) -> PyResult<()> {
        let mut turn = Some(turn);
        interruptibly(py, timeout, |waited| {
            let Some(next) = turn.take() else {
                return Ok(());
            };
            match self.turns.try_send(next) {
                Ok(()) => Ok(()),
                Err(TrySendError::Full(back)) => {
                    turn = Some(back);
                    let request = "call a collective of tensors on a GPU";
                    Err(Error::NoAnswer { request, waited })
                }
                Err(TrySendError::Disconnected(_)) => {
                    let why = "the thread that calls operations of GPUs has ended".to_owned();
                    Err(Error::SidecarLost { why })
                }
            }
        })
    }
}

/// Takes one turn after another, until there are no more.
fn take(turns: &Receiver<Turn>) {
    for turn in turns {
        match turn {
            // Without the interpreter they are given up when somebody else has it next.
            Turn::Parts(parts, inputs) => parts.call(|| drop(inputs)),
            Turn::Function(function) => {
                // Nothing where the interpreter ends.
                Python::try_attach(|py| {
                    if let Err(error) = function.call0(py) {
                        error.write_unraisable(py, Some(function.bind(py)));
                    }
                    drop(function);
                });
            }
        }
    }
}

fn part((call, sources, targets, offset): Part) -> GpuPart {
    GpuPart {
        call: call.0,
        sources: sources
            .into_iter()
            .map(|(start, nbytes)| DeviceMemory::of_owner(start, nbytes))
            .collect(),
        targets: targets
            .into_iter()
            .map(|(from, start, nbytes)| (from, DeviceMemory::of_owner(start, nbytes)))
            .collect(),
        offset,
    }
}

/// A collective of tensors on a GPU. Keep what it writes until `settle` has returned.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct GpuCollective(Arc<client::GpuCollective>);

#[pymethods]
impl GpuCollective {
    /// Waits until all of it has been called: what is called next comes behind it.
    fn called(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        interruptibly(py, seconds(timeout)?, |limit| self.0.called(limit))
    }

    /// Waits for the results and begins the copies back.
    fn finish(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        interruptibly_or(
            py,
            seconds(timeout)?,
            |limit| self.0.finish(limit),
            |error| match self.0.waits_for(WHOM) {
                Ok(whom) => error.because(whom),
                Err(_unknown) => error,
            },
        )
    }

    /// What `stream` is given from here on waits for the results; the host does not.
    fn gate(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        self.0
            .gate(CudaStream::of_owner(stream))
            .map_err(|error| raise(py, &error))
    }

    /// Waits, asleep, until the copies back are over.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.settle())
            .map_err(|error| raise(py, &error))
    }
}
