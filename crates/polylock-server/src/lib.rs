//! The lock service: an HTTP server in front of any store of polylock.
//!
//! The server is stateless: every entry in the store belongs to the request of a client, so several servers may share a store, and a client
//! may continue on another server.

mod access;
mod alerts;
mod body;
mod caller;
mod clock;
mod console;
mod events;
mod expiry;
mod health;
mod holds;
mod jobs;
mod lines;
mod objects;
mod operations;
mod readers;
mod readiness;
mod renewals;
mod serve;
#[cfg(test)]
mod serve_tests;
mod service;
#[cfg(feature = "simulation")]
pub mod simulation;
mod status;
mod streams;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without/tls.rs"]
mod tls;
mod ttls;
mod turns;
mod waiters;
mod watches;

pub use self::{access::Access, serve::serve, service::Service, tls::Tls};
