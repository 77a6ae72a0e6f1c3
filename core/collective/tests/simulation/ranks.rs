//! The ranks: each calls what its program holds, as far as its window allows, with inputs that follow from a seed.

use std::time::Duration;

use collective::Call;
use collective::machine::{Input, OpId, WORLD};
use sim::Rng;

use crate::cluster::{Cluster, Event};
use crate::fixture::draw;

impl Cluster {
    /// All ranks call the same.
    pub(crate) fn program(&mut self, calls: &[Call]) {
        self.programs
            .iter_mut()
            .for_each(|program| program.extend(calls));
    }

    pub(crate) fn start(&mut self) {
        for rank in 0..self.group.layout.world() {
            self.call_soon(rank);
        }
    }

    /// Lets a rank call what its program holds next, after some time.
    pub(crate) fn call_soon(&mut self, rank: u32) {
        let delay = Duration::from_nanos(self.rng.range(0..3_000_000));
        self.queue.after(delay, Event::Call { rank });
    }

    /// The input of a rank for its k-th operation.
    pub(crate) fn input(&self, rank: u32, op: usize) -> Vec<u8> {
        let call = self.programs[rank as usize][op];
        if let Some(given) = self.given.get(rank as usize) {
            let before = self.programs[rank as usize][..op].iter();
            let start = before.map(|call| call.input_bytes() as usize).sum();
            return given[start..][..call.input_bytes() as usize].to_vec();
        }
        let salt = u64::from(rank) << 32 | op as u64;
        draw::input(&mut Rng::new(self.inputs_seed ^ salt), &call)
    }

    /// A rank calls what its window allows: memory for it, and the input little by little.
    pub(crate) fn call(&mut self, rank: u32) {
        let node = self.group.layout.node_of(rank);
        let local = (rank - self.group.layout.ranks(node).start) as usize;
        let index = rank as usize;
        let held = self.held.contains(&rank) || self.frozen.contains(&node) || !self.is_alive(node);
        if held || !self.machine(node).may_submit(WORLD, local) {
            return;
        }
        let op = self.called[index];
        if op >= self.programs[index].len() || op >= self.outcomes[index].len() + self.group.window
        {
            return;
        }
        self.called[index] += 1;
        let call = self.programs[index][op];
        if let Some(&reason) = self.refused.get(&(rank, op)) {
            let refuse = Input::Refuse {
                group: WORLD,
                rank: local,
                call,
                reason,
            };
            self.handle(node, refuse);
            self.call_soon(rank);
            return;
        }
        call.check(self.group.layout.world()).unwrap();
        let id = op as OpId;
        let input = self.input(rank, op);
        let total = input.len() as u64;
        let mut ready = self.rng.range(0..total + 1);
        let at_once = ready;
        let memory = &mut self.memory[node];
        memory.add_input((WORLD, id), local, input, at_once);
        memory.add_result((WORLD, id), call.result_bytes(self.group.layout.world()));
        while ready < total {
            ready = self.rng.range(ready + 1..total + 1);
            let delay = Duration::from_nanos(self.rng.range(0..1_000_000));
            self.queue.after(
                delay,
                Event::Ready {
                    node,
                    rank: local,
                    op: id,
                    ready,
                },
            );
        }
        self.handle(
            node,
            Input::Submit {
                group: WORLD,
                rank: local,
                call,
                ready: at_once,
            },
        );
        self.call_soon(rank);
    }
}
