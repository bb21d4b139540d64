//! Simulated processes with the real core, over a network with faults, in virtual time: against the model of a store, or with the real
//! client of a store against servers that execute its scripts. A run is determined by its seed.
//!
//! | module | part |
//! |---|---|
//! | [`plan`](mod@plan), [`shrink`](mod@shrink) | the clients and faults of a run, drawn from its seed; a smaller plan that fails |
//! | [`world`] | a run of a plan |
//! | [`time`], [`network`], [`process`] | virtual time; links; the clock of a process |
//! | [`workload`] | the clients |
//! | [`servers`] | the servers, whatever the store |
//! | [`queue_server`], [`server`], [`queue_client`] | the model of a store with queues: its rules, the server behind the network, the client |
//! | [`redis`] | the servers of the real Redis and Redlock clients |
//! | [`record`](mod@record), [`check`](mod@check), [`timeline`] | the record of the clients; the promises; the readable events |
//!
//! A further store has its [`servers`] and a variant in the plan.

pub mod check;
pub mod network;
pub mod plan;
pub mod process;
pub mod queue_client;
pub mod queue_server;
pub mod record;
pub mod redis;
pub mod server;
pub mod servers;
pub mod shrink;
#[cfg(test)]
mod tests;
pub mod time;
pub mod timeline;
pub mod workload;
pub mod world;
