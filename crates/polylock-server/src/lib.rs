//! The lock service: an HTTP server in front of any store of polylock.
//!
//! The server is stateless: every entry in the store belongs to the request of a client, so several servers may share a store, and a client
//! may continue on another server.

mod alerts;
mod body;
mod clock;
mod holds;
mod operations;
mod serve;
mod service;
mod status;
mod streams;
mod turns;
mod waiters;

pub use self::{serve::serve, service::Service};
