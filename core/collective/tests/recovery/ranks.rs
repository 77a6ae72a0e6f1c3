//! The processes of a trainer: each calls what its program holds, as far as its window allows; after a restart or a new
//! epoch the sidecar hands in again what they were not told the end of.

use collective::machine::{Input, OpId, WORLD};
use sim::Rng;

use crate::fixture::draw;
use crate::world::{Event, MS, World};

impl World {
    pub(crate) fn call_soon(&mut self, rank: u32) {
        let delay = self.a_while(MS / 1000, 3 * MS);
        self.queue.after(delay, Event::Call { rank });
    }

    /// A rank calls what its window allows.
    pub(crate) fn call(&mut self, rank: u32) {
        let client = &mut self.clients[rank as usize];
        let program = &self.programs[rank as usize];
        let window = client.outcomes.len() + self.setup.window;
        // Trainers start when the gang does.
        if !client.alive || client.out || self.store.is_empty() {
            return;
        }
        if client.called < program.len().min(window) {
            client.called += 1;
            self.call_soon(rank);
        }
        let node = self.setup.layout.node_of(rank);
        self.pump(node, rank);
    }

    pub(crate) fn pump_all(&mut self, node: usize) {
        for rank in self.setup.layout.ranks(node) {
            self.queue.after(MS / 1000, Event::Call { rank });
        }
    }

    /// Hands calls to the machine, as far as it takes them.
    pub(crate) fn pump(&mut self, node: usize, rank: u32) {
        let local = (rank - self.setup.layout.ranks(node).start) as usize;
        loop {
            let sidecar = &self.sidecars[node];
            let op = sidecar.submitted[local];
            let Some(machine) = &sidecar.machine else {
                return;
            };
            let goes = sidecar.started && sidecar.report.is_none() && machine.broken().is_none();
            if !goes
                || op >= self.clients[rank as usize].called
                || !machine.may_submit(WORLD, local)
            {
                return;
            }
            self.submit(node, rank, local, op);
        }
    }

    pub(crate) fn submit(&mut self, node: usize, rank: u32, local: usize, op: usize) {
        let call = self.programs[rank as usize][op];
        let id = op as OpId;
        let input = self.input(rank, op);
        let total = input.len() as u64;
        let sidecar = &mut self.sidecars[node];
        sidecar.submitted[local] += 1;
        let at_once = self.rng.range(0..total + 1);
        sidecar.memory.add_input(id, local, input, at_once);
        sidecar
            .memory
            .add_result(id, call.result_bytes(sidecar.world));
        sidecar.released.remove(&id);
        let (life, epoch) = (sidecar.life, sidecar.epoch);
        if at_once < total {
            let delay = self.a_while(MS / 1000, MS);
            let event = Event::Ready {
                node,
                life,
                epoch,
                rank: local,
                op: id,
                ready: total,
            };
            self.queue.after(delay, event);
        }
        let submit = Input::Submit {
            group: WORLD,
            rank: local,
            call,
            ready: at_once,
        };
        self.handle(node, submit);
    }

    pub(crate) fn ready(
        &mut self,
        node: usize,
        life: u64,
        epoch: u64,
        rank: usize,
        op: OpId,
        ready: u64,
    ) {
        if self.sidecars[node].life == life && self.sidecars[node].epoch == epoch {
            self.sidecars[node].memory.ready(op, rank, ready);
            let group = WORLD;
            let ready = Input::Ready {
                group,
                rank,
                op,
                ready,
            };
            self.handle(node, ready);
        }
    }

    /// The input of a rank for its k-th operation.
    pub(crate) fn input(&self, rank: u32, op: usize) -> Vec<u8> {
        let call = self.programs[rank as usize][op];
        let salt = u64::from(rank) << 32 | op as u64;
        draw::input(&mut Rng::new(self.inputs_seed ^ salt), &call)
    }
}
