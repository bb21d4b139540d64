#![doc = include_str!("docs.md")]

mod backend;
mod connect;
mod inspect;
mod raise;
mod records;
mod server;
mod session;
mod waiter;

pub(crate) use connect::open;
pub(crate) use server::{ErrorCodes, LockStatements, SLICE, ServerPools, Statements};

pub use crate::engine::strategy::Strategy;
