//! What the sidecars of one gang say while the store is asked what it holds of that gang, which may
//! take as long as the API server cannot be reached.

use std::collections::BTreeMap;

use collective::membership::Connection;

use super::gangs::Input;
use crate::limits::{DEFERRED_OF_GANG, DEFERRED_OF_NODE};

/// Inputs in the order of their connections. Where there are too many, a connection ends that
/// brings one more: its sidecar dials again and says everything again.
#[derive(Debug)]
pub(super) struct DeferredInputs {
    room: usize,
    connections: BTreeMap<Connection, Vec<Input>>,
}

impl DeferredInputs {
    /// Of a gang of so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            room: DEFERRED_OF_GANG + DEFERRED_OF_NODE * nodes,
            connections: BTreeMap::new(),
        }
    }

    /// A sidecar has said hello.
    pub(super) fn connected(&mut self, connection: Connection, hello: Input) {
        self.connections.insert(connection, Vec::new());
        self.said(connection, hello);
    }

    /// It has said more, or has left.
    pub(super) fn said(&mut self, connection: Connection, input: Input) {
        let Some(said) = self.connections.get_mut(&connection) else {
            return; // It was ended here.
        };
        if self.room > 0 {
            self.room -= 1;
            said.push(input);
        } else {
            // With its hello goes the way to it, which ends its session.
            self.room += said.len();
            self.connections.remove(&connection);
        }
    }

    /// All of them.
    pub(super) fn into_inputs(self) -> impl Iterator<Item = Input> {
        self.connections.into_values().flatten()
    }
}
