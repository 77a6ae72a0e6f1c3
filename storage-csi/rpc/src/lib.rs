//! gRPC between the programs of a file system. Each connection begins with `link`'s handshake, in which both sides prove
//! that they hold the key of their kind; then HTTP/2 starts on it. So whoever serves knows who asks, and there is no other
//! mechanism of authentication. Nothing is encrypted. What the calls mean is said in the .proto files, and decided by
//! those who serve them.

mod chain_map;
mod client;
mod handshake;
mod keys;
mod meta_client;
pub mod pb;
mod server;

pub use chain_map::{MapFollower, WatchError, target_bytes, target_from};
pub use client::{ConnectError, connect};
pub use handshake::HandshakeError;
pub use keys::{KeyError, StorageKeys, file_system_uuid};
pub use meta_client::{FileExtent, MetaClient, MetaError, NodeOwner};
pub use server::{AuthenticatedStream, accept, peer, server};

use chain_link::{PeerRole, StoragePeer};
use link::handshake::Key;

/// Who this side is, and with which keys it proves so.
#[derive(Clone, Debug)]
pub struct RpcCredentials {
    /// This side.
    pub identity: StoragePeer,
    /// Its keys.
    pub keys: StorageKeys,
}

impl RpcCredentials {
    /// The key between this side and those of a role.
    fn key_to(&self, role: PeerRole) -> Result<&Key, KeyError> {
        let other = StoragePeer::new(self.identity.file_system(), role, 0);
        self.keys.between(self.identity, other)
    }
}
