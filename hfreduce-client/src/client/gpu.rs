//! A collective of tensors on a GPU, in parts, so that the copy of one part runs while the sidecars work on another. Owns
//! the order within it: each part is copied to the host, called, waited for and copied back.
//!
//! Three threads take part. The one that calls begins the copies to the host ([`GpuCollective::begin`]). Another waits for
//! each and calls the operation ([`GpuParts::call`]), for one collective after another, because ranks call in one order. A
//! third waits for the results and begins the copies back ([`GpuCollective::finish`]). None of them needs what Python
//! locks.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Arena, CallTicket, Client, Error, Group};
use crate::Call;
use crate::cuda::{Copy, CudaDevice, CudaEvent, CudaStream, DeviceMemory};

/// A part of a collective: what it reads, what it calls and where its result goes.
#[derive(Debug)]
pub struct GpuPart {
    /// The operation.
    pub call: Call,
    /// What it reads, one after another.
    pub sources: Vec<DeviceMemory>,
    /// Places in the result, and what is written from there.
    pub targets: Vec<(usize, DeviceMemory)>,
    /// Where in the arena its input and its result have room.
    pub offset: usize,
}

/// The parts on their way to the sidecar.
#[derive(Debug)]
pub struct GpuParts {
    fetched: Vec<Copy>,
    collective: Arc<GpuCollective>,
    timeout: Duration,
}

impl GpuParts {
    /// Calls each part when it has come to the host. `read` is run once the GPU has read all inputs.
    pub fn call(mut self, read: impl FnOnce()) {
        let mut read = Some(read);
        let fetched = std::mem::take(&mut self.fetched);
        let last = fetched.len().saturating_sub(1);
        for (index, mut fetched) in fetched.into_iter().enumerate() {
            // What is called before it has come would be worked on as it was.
            let here = fetched.wait();
            if index == last
                && let Some(read) = read.take()
            {
                read();
            }
            let collective = &self.collective;
            let GpuPart { call, offset, .. } = collective.parts[index];
            let (client, group) = (&collective.client, collective.group);
            let called = here.map_err(Error::from).and_then(|()| {
                client.submit_at(group, call, &collective.arena, offset, self.timeout)
            });
            collective.say(called);
        }
    }
}

impl Drop for GpuParts {
    fn drop(&mut self) {
        // Of a thread that ended: nobody waits for what is never called.
        while self.collective.calls().count < self.collective.parts.len() {
            let why = "the thread that calls operations of GPUs has ended".to_owned();
            self.collective.say(Err(Error::SidecarLost { why }));
        }
    }
}

/// What became of the calls.
#[derive(Debug, Default)]
struct Calls {
    /// Of those that nobody has finished, the oldest first.
    open: VecDeque<Result<CallTicket, Error>>,
    /// Parts that were called, or could not be.
    count: usize,
}

/// The copies back.
#[derive(Debug, Default)]
struct Back {
    /// Parts whose operation is over.
    count: usize,
    /// Of the part that is waited for.
    ticket: Option<CallTicket>,
    delivered: Vec<Copy>,
    first_error: Option<Error>,
}

/// A collective of tensors on a GPU. Keep the tensors until [`GpuCollective::settle`] has returned or this is dropped.
#[derive(Debug)]
pub struct GpuCollective {
    client: Client,
    group: Group,
    device: Arc<CudaDevice>,
    parts: Vec<GpuPart>,
    calls: Mutex<Calls>,
    called: Condvar,
    back: Mutex<Back>,
    /// Comes when all results have.
    arrived: OnceLock<CudaEvent>,
    arena: Arc<Arena>,
}

impl GpuCollective {
    /// Begins to copy what the parts read to the host, behind everything that `producer` was given so far. Keep what they
    /// read until they were called. Each call waits for room for at most `timeout`.
    pub fn begin(
        client: &Client,
        group: Group,
        device: &Arc<CudaDevice>,
        arena: &Arc<Arena>,
        parts: Vec<GpuPart>,
        producer: CudaStream,
        timeout: Duration,
    ) -> Result<(Arc<Self>, GpuParts), Error> {
        let fetched = parts
            .iter()
            .map(|part| Copy::to_host(device, &part.sources, arena, part.offset, producer))
            .collect::<Result<_, _>>()?;
        let collective = Arc::new(Self {
            client: client.clone(),
            group,
            device: Arc::clone(device),
            parts,
            calls: Mutex::default(),
            called: Condvar::new(),
            back: Mutex::default(),
            arrived: OnceLock::new(),
            arena: Arc::clone(arena),
        });
        let parts = GpuParts {
            fetched,
            collective: Arc::clone(&collective),
            timeout,
        };
        Ok((collective, parts))
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn back(&self) -> MutexGuard<'_, Back> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, called: Result<CallTicket, Error>) {
        let mut calls = self.calls();
        calls.open.push_back(called);
        calls.count += 1;
        self.called.notify_all();
    }

    /// Waits until so many parts have been called. After a timeout it may be waited again.
    fn await_calls(&self, count: usize, limit: Duration) -> Result<MutexGuard<'_, Calls>, Error> {
        let start = Instant::now();
        let calls = self.calls();
        let is_early = |calls: &mut Calls| calls.count < count;
        let (calls, _) = self
            .called
            .wait_timeout_while(calls, limit, is_early)
            .unwrap_or_else(PoisonError::into_inner);
        match self.parts.get(calls.count) {
            Some(part) if calls.count < count => Err(Error::Timeout {
                call: part.call,
                waited: start.elapsed(),
                why: "its input has not come from the GPU, whose stream has not reached it"
                    .to_owned(),
            }),
            _ => Ok(calls),
        }
    }

    /// Waits until all parts have been called: what is called next comes behind them. After a timeout it may be waited
    /// again.
    pub fn called(&self, limit: Duration) -> Result<(), Error> {
        self.await_calls(self.parts.len(), limit).map(drop)
    }

    /// Waits for the results and begins the copies back; the first error where parts failed. After a timeout it may be called
    /// again, and goes on where it was.
    pub fn finish(&self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let left = || limit.saturating_sub(start.elapsed());
        let mut back = self.back();
        while let Some(part) = self.parts.get(back.count) {
            let output = match self.ticket(&mut back, left())? {
                Ok(ticket) => match self.client.wait(ticket, left()) {
                    Err(error) if error.is_late() => return Err(error),
                    output => output,
                },
                Err(error) => Err(error),
            };
            let delivered = output.and_then(|output| {
                let (device, arena, result) = (&self.device, &self.arena, output.result);
                Ok(Copy::to_device(
                    device,
                    result,
                    arena,
                    part.offset,
                    &part.targets,
                )?)
            });
            match delivered {
                Ok(copy) => back.delivered.push(copy),
                Err(error) => {
                    back.first_error.get_or_insert(error);
                }
            }
            (back.ticket, back.count) = (None, back.count + 1);
        }
        match back.first_error.take() {
            Some(error) => Err(error),
            None => {
                // On one stream, so the last one's end is that of all.
                if self.arrived.get().is_none() {
                    let arrived = CudaEvent::of_deliveries(&self.device)?;
                    self.arrived.get_or_init(|| arrived);
                }
                Ok(())
            }
        }
    }

    /// The operation of the part that is next, or why it could not be called. An error where it was not called so far.
    fn ticket(&self, back: &mut Back, limit: Duration) -> Result<Result<CallTicket, Error>, Error> {
        if let Some(ticket) = back.ticket {
            return Ok(Ok(ticket));
        }
        let mut calls = self.await_calls(back.count + 1, limit)?;
        // There is one: so many were called, and those before were taken.
        let called = calls.open.pop_front();
        let called = called.unwrap_or(Err(Error::UnknownTicket(0)));
        back.ticket = called.as_ref().ok().copied();
        Ok(called)
    }

    /// Whom the part that is next waits for, as [`Client::waits_for`] says it.
    pub fn waits_for(&self, timeout: Duration) -> Result<String, Error> {
        let ticket = self.back().ticket;
        ticket.map_or_else(
            || Ok(String::new()),
            |ticket| self.client.waits_for(ticket, timeout),
        )
    }

    /// What `consumer` is given from here on waits for the results; the host does not. Nothing of what failed or has not
    /// finished.
    pub fn gate(&self, consumer: CudaStream) -> Result<(), Error> {
        match self.arrived.get() {
            Some(arrived) => Ok(arrived.gate(consumer)?),
            None => Ok(()),
        }
    }

    /// Waits until the copies back that were begun are over: the sidecar gets the memory of the results back.
    pub fn settle(&self) -> Result<(), Error> {
        let mut back = self.back();
        for copy in &mut back.delivered {
            copy.wait()?;
        }
        back.delivered.clear();
        Ok(())
    }
}

impl Drop for GpuCollective {
    fn drop(&mut self) {
        let back = self.back.get_mut().unwrap_or_else(PoisonError::into_inner);
        if back.count < self.parts.len() {
            // An operation in flight reads the arena, and is called with it again where the sidecar was started again.
            std::mem::forget(Arc::clone(&self.arena));
        }
    }
}
