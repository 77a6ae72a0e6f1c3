//! Bytes from a hostile or broken side, for everything that reads such bytes: what is valid, damaged in a few places, so that
//! most of it passes the first checks. Nothing panics or waits for ever, and what is accepted means what it says.
//! `cargo xtask fuzz TARGET --minutes M` goes on for longer.

#![expect(clippy::unwrap_used, reason = "test harness")]

mod messages;
mod rings;
