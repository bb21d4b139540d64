//! What the tests against real stores and real processes share.
//!
//! - [`targets`](mod@targets): the list of stores of this machine, in one place;
//! - [`stores`](mod@stores): those of them that processes share;
//! - [`namespace`]: shell scripts where process numbers can be chosen;
//! - [`process`]: helper programs that are killed, stopped and always cleaned away;
//! - [`proxy`]: faults of the network between a client and a server;
//! - [`servers`]: real PostgreSQL, MariaDB, Redis, Valkey, ZooKeeper and Azurite servers, started, hurt and always cleaned
//!   away;
//! - [`refusals`], [`trace`]: what a store says when it refuses, and what is traced;
//! - [`clock`]: stamps that all processes share, and waits that end;
//! - [`takeover`]: the time between the last sign of life of a command and the start of the next;
//! - [`load`]: many who use a few locks at once, through whatever happens;
//! - [`history`]: what the sections that workers wrote down say about waits, hand-overs and fairness;
//! - [`cargo`]: what only `cargo` knows: other packages' binaries, dependency trees.
//!
//! The helper program is `worker`, the benchmark is `cargo bench -p polylock-integration-tests`, and
//! `cargo run -p polylock-integration-tests --bin mutants` plants bugs in the library and expects a test to fail.

pub mod cargo;
pub mod clock;
pub mod history;
pub mod load;
pub mod namespace;
pub mod process;
pub mod proxy;
pub mod refusals;
pub mod servers;
pub mod stores;
pub mod takeover;
pub mod targets;
pub mod trace;
