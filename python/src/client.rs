//! The connection to the node's sidecar, as a Python class: call an operation with the bytes of a tensor, wait for it,
//! get the result's bytes into another tensor. Bytes are copied here, once each way, and counted; `submit` and `take`
//! copy none.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hfreduce_client::client::{Attaching, Error};
use hfreduce_client::parts;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::call::Call;
use crate::error::raise;
use crate::gpu::{self, Gpu};
use crate::waiting::{interruptibly, interruptibly_or};
use crate::{copying, memory};

/// How long an error that time was up waits for the sidecar to say whom for.
pub(crate) const WHOM: Duration = Duration::from_secs(2);

/// An operation in flight.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Ticket(hfreduce_client::client::CallTicket);

/// A group of ranks that this process has opened.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Group(pub(crate) hfreduce_client::client::Group);

#[pymethods]
impl Group {
    /// Rank of this process in it.
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Its ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.0.size
    }
}

/// The connection to the node's sidecar. Its methods may be called from any thread, and raise
/// `HFReduceError`; times are in seconds.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) inner: hfreduce_client::client::Client,
    copied_in: AtomicU64,
    copied_out: AtomicU64,
    results_written: Arc<AtomicU64>,
    /// Arenas that operations in flight read: Python may drop its own before they are over.
    read: Mutex<HashMap<hfreduce_client::client::CallTicket, Arc<hfreduce_client::client::Arena>>>,
}

impl Client {
    fn read(
        &self,
    ) -> MutexGuard<
        '_,
        HashMap<hfreduce_client::client::CallTicket, Arc<hfreduce_client::client::Arena>>,
    > {
        crate::locked(&self.read)
    }

    /// Calls without giving up the interpreter where that takes no time: threads that take turns at it cost more
    /// than the call.
    fn at_once_or_interruptibly<T: Send>(
        py: Python<'_>,
        timeout: Duration,
        mut call: impl FnMut(Duration) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        match call(Duration::ZERO) {
            Err(error) if error.is_late() => interruptibly(py, timeout, call),
            done => done.map_err(|error| raise(py, &error)),
        }
    }

    fn finish(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        timeout: f64,
    ) -> PyResult<hfreduce_client::client::Output> {
        let timeout = seconds(timeout)?;
        let output = interruptibly_or(
            py,
            timeout,
            |limit| self.inner.wait(ticket.0, limit),
            |error| match self.inner.waits_for(ticket.0, WHOM) {
                Ok(whom) => error.because(whom),
                Err(_unknown) => error,
            },
        );
        if self.inner.test(ticket.0).is_err() {
            // It is over, and not to be waited for again.
            self.read().remove(&ticket.0);
        }
        output
    }
}

#[pymethods]
impl Client {
    /// Attaches as process `local_rank` of the node to the sidecar listening at `socket`.
    #[staticmethod]
    fn attach(py: Python<'_>, socket: PathBuf, local_rank: u32, timeout: f64) -> PyResult<Self> {
        let timeout = seconds(timeout)?;
        let mut attaching = Attaching::new(&socket, local_rank);
        let inner = interruptibly(py, timeout, |limit| attaching.go_on(limit))?;
        Ok(Self {
            inner,
            copied_in: AtomicU64::new(0),
            copied_out: AtomicU64::new(0),
            results_written: Arc::default(),
            read: Mutex::default(),
        })
    }

    /// Rank of this process in the gang.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.standing().rank
    }

    /// Processes of the gang.
    #[getter]
    fn world_size(&self) -> u32 {
        self.inner.standing().world
    }

    /// Opens a group of global ranks, which ascend, and waits until all of them have done so alike under the same
    /// number. `replicated`: its ranks do the same work, so that some of them can go on without others. `priority`: what
    /// is computed for it goes before what is for groups of a lower one; 0 is the world's.
    #[pyo3(signature = (number, ranks, replicated, timeout, priority = 0))]
    fn open(
        &self,
        py: Python<'_>,
        number: u64,
        ranks: Vec<u32>,
        replicated: bool,
        timeout: f64,
        priority: i8,
    ) -> PyResult<Group> {
        let (timeout, start) = (seconds(timeout)?, Instant::now());
        let manner = (replicated, priority);
        let opening = interruptibly(py, timeout, |limit| {
            self.inner.begin_open(number, &ranks, manner, limit)
        })?;
        let left = timeout.saturating_sub(start.elapsed());
        interruptibly(py, left, |limit| self.inner.finish_open(&opening, limit)).map(Group)
    }

    /// Calls an operation with the bytes of `input`, which may change as soon as this returns. Of the world, unless a
    /// `group` is given. `splits`, of an all-to-all: how many elements go to each rank, and how many come from each.
    #[pyo3(signature = (call, input, *, group = None, splits = None, timeout))]
    fn call(
        &self,
        py: Python<'_>,
        call: Call,
        input: Option<PyBuffer<u8>>,
        group: Option<&Bound<'_, Group>>,
        splits: Option<(Vec<u64>, Vec<u64>)>,
        timeout: f64,
    ) -> PyResult<Ticket> {
        let timeout = seconds(timeout)?;
        let lists = splits
            .as_ref()
            .map_or(0, |(send, _)| parts::bytes(send.len() as u32));
        let mut buffer = match input {
            None => None,
            Some(input) => {
                let bytes = lists + input.len_bytes();
                let idle = self.inner.idle_buffer(bytes);
                let mut buffer = match idle.map_err(|error| raise(py, &error))? {
                    Some(buffer) => buffer,
                    None => interruptibly(py, timeout, |limit| self.inner.buffer(bytes, limit))?,
                };
                if let Some((send, receive)) = &splits {
                    parts::write(send, receive, &mut buffer[..lists]);
                }
                copying::copy_in(py, &input, &mut buffer[lists..])?;
                self.copied_in.fetch_add(bytes as u64, Ordering::Relaxed);
                Some(buffer)
            }
        };
        let group = group.map_or_else(|| self.inner.world(), |group| group.get().0);
        Self::at_once_or_interruptibly(py, timeout, |limit| {
            self.inner.submit_from(group, call.0, &mut buffer, limit)
        })
        .map(Ticket)
    }

    /// Waits for an operation and copies its result to `output`, if that is given: from `offset` on, as much as fits.
    /// Returns how many ranks took part.
    #[pyo3(signature = (ticket, output, *, offset = None, timeout))]
    fn wait(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        output: Option<PyBuffer<u8>>,
        offset: Option<usize>,
        timeout: f64,
    ) -> PyResult<u32> {
        let finished = self.finish(py, ticket, timeout)?;
        if let Some(output) = output {
            let result: &[u8] = match offset {
                None => &finished.result,
                Some(from) => {
                    let part = finished.result.get(from..from + output.len_bytes());
                    part.ok_or_else(|| PyValueError::new_err("past the end of the result"))?
                }
            };
            let bytes = result.len() as u64;
            self.copied_out.fetch_add(bytes, Ordering::Relaxed);
            copying::copy_out(py, result, &output)?;
        }
        Ok(finished.members.ranks)
    }

    /// The members at present: the epoch, how many ranks they have, and the ranks of their nodes.
    #[pyo3(signature = (*, timeout))]
    fn members(&self, py: Python<'_>, timeout: f64) -> PyResult<(u64, u32, Vec<u32>)> {
        let timeout = seconds(timeout)?;
        let members = interruptibly(py, timeout, |limit| self.inner.members(limit))?;
        Ok((members.epoch, members.ranks, members.nodes().collect()))
    }

    /// Memory of at least `bytes` for inputs, which the sidecar does not free.
    fn arena(&self, py: Python<'_>, bytes: usize, timeout: f64) -> PyResult<memory::Arena> {
        let timeout = seconds(timeout)?;
        let arena = interruptibly(py, timeout, |limit| self.inner.arena(bytes, limit))?;
        Ok(memory::Arena(Arc::new(arena)))
    }

    /// As `call`, with the bytes that lie at `offset` of an arena, a multiple of 64. They must not change before the
    /// operation is over.
    #[pyo3(signature = (call, arena, offset, *, group = None, timeout))]
    fn submit(
        &self,
        py: Python<'_>,
        call: Call,
        arena: &memory::Arena,
        offset: usize,
        group: Option<&Bound<'_, Group>>,
        timeout: f64,
    ) -> PyResult<Ticket> {
        let timeout = seconds(timeout)?;
        let group = group.map_or_else(|| self.inner.world(), |group| group.get().0);
        let ticket = Self::at_once_or_interruptibly(py, timeout, |limit| {
            self.inner.submit_at(group, call.0, &arena.0, offset, limit)
        })?;
        self.read().insert(ticket, Arc::clone(&arena.0));
        Ok(Ticket(ticket))
    }

    /// Waits for an operation and returns its result where it lies. It is held until the last array of it is gone,
    /// and while the node's memory is full of results that are held, calls wait, on every rank.
    #[pyo3(signature = (ticket, *, timeout))]
    fn take(&self, py: Python<'_>, ticket: &Ticket, timeout: f64) -> PyResult<memory::Result> {
        let output = self.finish(py, ticket, timeout)?;
        memory::Result::new(output, &self.results_written)
    }

    /// Waits for an operation and begins to copy parts of its result to the GPU's memory: each from a place in the result
    /// to an address, so many bytes. What lies from `offset` of the arena on, as far as the result is long, may be
    /// overwritten.
    #[pyo3(signature = (ticket, device, arena, offset, targets, *, timeout))]
    #[expect(clippy::too_many_arguments, reason = "two places, and what is between")]
    fn deliver(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        device: &Gpu,
        arena: &memory::Arena,
        offset: usize,
        targets: Vec<gpu::Target>,
        timeout: f64,
    ) -> PyResult<gpu::Copy> {
        let output = self.finish(py, ticket, timeout)?;
        py.detach(|| device.deliver(output.result, arena, offset, &targets))
            .map_err(|error| raise(py, &error))
    }

    /// Bytes that `call` has copied to the sidecar's memory.
    #[getter]
    fn copied_in(&self) -> u64 {
        self.copied_in.load(Ordering::Relaxed)
    }

    /// Results that `take` has given and whose taker wrote to them: each page of it was copied then, which costs
    /// more than `wait`.
    #[getter]
    fn results_written(&self) -> u64 {
        self.results_written.load(Ordering::Relaxed)
    }

    /// Bytes that `wait` has copied out of it.
    #[getter]
    fn copied_out(&self) -> u64 {
        self.copied_out.load(Ordering::Relaxed)
    }

    /// Whether an operation is over, well or not.
    fn test(&self, py: Python<'_>, ticket: &Ticket) -> PyResult<bool> {
        self.inner.test(ticket.0).map_err(|error| raise(py, &error))
    }

    /// Leaves in good order. Operations in flight fail, here and on the ranks that need this one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.close())
            .map_err(|error| raise(py, &error))
    }
}

pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err(format!("{timeout} is not a time in seconds")))
}
