//! A small key-value store that every node of a gang holds whole, as pure logic: what calls do to the keys, and how
//! the nodes keep one order of all calls while members are lost and sidecars forget. Leaves sockets, threads and time
//! to `hfreduce-sidecar`, and who the members are to the operator.

mod call;
mod encoding;
mod keys;
mod replica;

pub use call::{ANSWER_LIMIT_BYTES, BYTES_LIMIT, COMMAND_LIMIT_BYTES, SESSION_LIMIT};
pub use call::{Answer, Call, ClientId, Command, Failure, Value};
pub use encoding::Malformed;
pub use keys::{Keys, Progress};
pub use replica::{Effect, Input, Message, Replica, Version};
