//! The agent of one node.

pub mod pb;
