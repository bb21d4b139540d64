//! Simulated processes with the real core, against the model of a store, over a network with faults, in virtual time. A run is
//! determined by its seed.
//!
//! | module | part |
//! |---|---|
//! | [`plan`](mod@plan), [`shrink`](mod@shrink) | the clients and faults of a run, drawn from its seed; a smaller plan that fails |
//! | [`world`] | a run of a plan |
//! | [`time`], [`network`], [`process`] | virtual time; links; the clock of a process |
//! | [`workload`] | the clients |
//! | [`queue_server`], [`server`], [`queue_client`] | a store with queues: its rules, the server behind the network, the client |
//! | [`check`](mod@check), [`timeline`] | the promises; the readable record |
//!
//! A further store has a model of its rules and a client beside those of the queue, and a variant in the plan.

pub mod check;
pub mod network;
pub mod plan;
pub mod process;
pub mod queue_client;
pub mod queue_server;
pub mod server;
pub mod shrink;
#[cfg(test)]
mod tests;
pub mod time;
pub mod timeline;
pub mod workload;
pub mod world;
