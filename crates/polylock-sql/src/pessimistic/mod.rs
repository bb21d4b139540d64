#![doc = include_str!("docs.md")]

mod connect;
mod server;
mod session;
mod store;
mod waiter;

pub(crate) use connect::open;
pub(crate) use server::{ErrorCodes, LockStatements, SLICE, ServerPools, Statements};

pub use crate::engine::strategy::Strategy;
