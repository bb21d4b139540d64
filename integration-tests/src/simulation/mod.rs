//! Simulated processes with the real core, over a network with faults, in virtual time: against the model of a store, or with the real
//! client of a store against servers that execute its scripts. A run is determined by its seed.
//!
//! | module | part |
//! |---|---|
//! | [`plan`](mod@plan), [`shrink`](mod@shrink) | the clients and faults of a run, drawn from its seed; a smaller plan that fails |
//! | [`store_kind`], [`planted`] | the stores; the bugs that a search must find |
//! | [`world`] | a run of a plan |
//! | [`search`] | the runs of successive seeds, and their record for `docs/safety.md` |
//! | [`time`], [`clock`], [`network`], [`process`] | virtual time; the clocks of machines; links; the surroundings of a process |
//! | [`workload`], [`draws`], [`ways`] | the clients; their random decisions; how they acquire locks and end their holds |
//! | [`handover`], [`holds`] | holds that other processes adopt, and breaks of single holds; the holds as all processes know them |
//! | [`servers`], [`live_entry`] | the servers, whatever the store; what they know of a request |
//! | [`socket`], [`listener`] | the connections of real clients, and a server's end of them |
//! | [`queue_server`], [`queue_call`], [`server`], [`queue_client`] | the model of a store with queues: its rules and its calls, the server behind the network, the client |
//! | [`sql`] | the server of the real MySQL and PostgreSQL stores |
//! | [`sqlite`] | the real SQLite store on a real file |
//! | [`redis`] | the servers of the real Redis and Redlock clients |
//! | [`zookeeper`] | the ensemble of the real ZooKeeper store |
//! | [`both`] | the servers of the transitional store, and the fleet that moves |
//! | [`azure`] | the service of the real client of Azure Blob Storage |
//! | [`service`] | two real lock services, each in a process of its own, in front of the model of a store |
//! | [`record`](mod@record), [`timeline`] | the record of the clients; the readable events |
//! | [`check`](mod@check), [`quiet`], [`violation`] | the promises; states of the store that last for too long; a broken promise |
//!
//! A further store has its [`servers`] and a variant in the plan.

pub mod azure;
pub mod both;
pub mod check;
pub mod clock;
pub mod draws;
pub mod handover;
pub mod holds;
pub mod listener;
pub mod live_entry;
pub mod network;
pub mod plan;
pub mod planted;
pub mod process;
pub mod queue_call;
pub mod queue_client;
pub mod queue_server;
pub mod quiet;
pub mod record;
pub mod redis;
pub mod search;
pub mod server;
pub mod servers;
pub mod service;
pub mod shrink;
pub mod socket;
pub mod sql;
pub mod sqlite;
pub mod store_kind;
#[cfg(test)]
mod tests;
pub mod time;
pub mod timeline;
pub mod violation;
pub mod ways;
pub mod workload;
pub mod world;
pub mod zookeeper;
