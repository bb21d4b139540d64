//! Redlock: a majority of real servers, with faults of the network, the servers and the clients; and with planted bugs.

mod breaking;
mod configuration;
mod frozen;
mod keeping;
mod leftovers;
mod list;
mod pauses;
mod quorum;
mod release;
mod renewal;
mod restart;
mod runtimes;
mod schedules;
mod setup;
mod stale;
mod tokens;
mod waiting;
