//! Every store under faults, under settings that break locks, under load, and with planted bugs; the helpers for users' own tables;
//! and the servers that the tests start.
#![allow(clippy::unwrap_used, reason = "tests")]

mod azure;
mod databases;
mod faults;
mod namespaces;
mod optimistic;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod redlock;
mod servers;
mod zookeeper;
