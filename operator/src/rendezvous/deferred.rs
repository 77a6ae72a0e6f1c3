//! What the sidecars of one gang say while the store is asked what it holds of that gang, which may
//! take as long as the API server cannot be reached.

use std::collections::BTreeMap;

use collective::membership::Connection;

use super::gangs::Input;

/// Inputs for each node: a hello, whom it suspects, its report, and the same again on another
/// connection.
const OF_NODE: usize = 64;
/// And for the gang: a small one's nodes may have more to say.
const OF_GANG: usize = 1024;

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
            room: OF_GANG + OF_NODE * nodes,
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
