//! A queue for each lock with hand-over by the server. One server, the primary that Sentinels watch, and a cluster share this code.

mod backend;
mod client;
mod connect;
mod convert;
#[cfg(test)]
mod fuzz;
mod inspect;
mod records;
mod scripts;
mod servers;

pub(crate) use client::Client;
pub(crate) use connect::StoreBuilder;
pub(crate) use scripts::Scripts;
