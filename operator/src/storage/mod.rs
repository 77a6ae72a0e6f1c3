//! The storage controller: makes chains of the targets of StoragePools, has the chain manager take
//! them into its table, and shows the table in StoragePools and StorageChains. The table decides:
//! nothing that is read back from the API server is taken for it, and no object's end or change
//! touches data. Which targets make a chain is decided by `chain-placement`.
//!
//! It has watches and a loop of its own, so that a cluster without these kinds, or a manager that
//! does not answer, keeps no job from being planned.

mod controller;
mod mirrors;
mod plan;
mod pool;
mod status;
mod table;

use chain_link::{PeerRole, StoragePeer};
use storage_rpc::{ConnectError, KeyError, RpcCredentials, StorageKeys, connect};
use tonic::transport::Channel;

use crate::args::StorageArgs;
pub use controller::StorageController;
pub use mirrors::{SharedStorage, StorageMirrors};

/// Longest text about one target.
const TARGET_TEXT_BYTES: usize = 512;

/// Why there is no channel to the chain manager.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The address is none.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// The channel to the chain manager; none where storage is off.
pub fn channel(args: &StorageArgs) -> Result<Option<Channel>, ChannelError> {
    let StorageArgs {
        storage_manager: Some(address),
        storage_file_system: Some(file_system),
        storage_member_key,
        storage_client_key: Some(clients),
    } = args
    else {
        return Ok(None);
    };
    let credentials = RpcCredentials {
        identity: StoragePeer::new(*file_system, PeerRole::Meta, 0),
        keys: StorageKeys::read(storage_member_key.as_deref(), clients)?,
    };
    Ok(Some(connect(address, PeerRole::Manager, credentials)?))
}
