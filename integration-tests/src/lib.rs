//! The shared harness of the tests with real stores and real processes.
//!
//! - [`targets`](mod@targets): the list of stores of this machine, in one place;
//! - [`stores`](mod@stores): the stores that several processes can use;
//! - [`pid_namespace`]: shell scripts in a process namespace, in which process numbers can be chosen;
//! - [`process`]: helper programs that a test kills and stops, and that are always cleaned up;
//! - [`proxy`]: network faults between a client and a server;
//! - [`servers`]: real PostgreSQL, MariaDB, Redis, Valkey, ZooKeeper and Azurite servers, started, killed and always
//!   cleaned up;
//! - [`settings`](mod@settings): servers with settings that break other programs, and what the stores do there;
//! - [`refusals`], [`trace`]: the errors of stores, and the tracing output;
//! - [`clock`]: a clock that all processes share, and waits with a timeout;
//! - [`election`](mod@election): the terms of candidates in other processes;
//! - [`takeover`]: the time between the last sign of life of a command and the start of the next;
//! - [`load`]: many tasks that use a few locks during faults;
//! - [`history`]: waits, hand-overs and fairness in the recorded sections of workers;
//! - [`simulation`](mod@simulation): the real core in virtual time, against models of stores;
//! - [`chaos`](mod@chaos): real processes on real servers under faults that are drawn from a seed, and the record of such runs;
//! - [`late`](mod@late): late, repeated and reordered messages of four processes;
//! - [`comparison`](mod@comparison), [`counter`](mod@counter): the stores and other lock libraries, measured side by side; the commands that
//!   servers receive;
//! - [`recipe`]: the recipes through which the clients of a run lock a name;
//! - [`cargo`]: other packages' binaries, and dependency trees.
//!
//! The helper program is `worker`, the benchmark is `cargo bench -p polylock-integration-tests`, and
//! `cargo run -p polylock-integration-tests --bin mutants` plants bugs in the library and checks that a test detects each.

pub mod cargo;
pub mod chaos;
pub mod clock;
pub mod comparison;
pub mod counter;
pub mod election;
pub mod history;
pub mod late;
pub mod load;
pub mod migration;
pub mod pid_namespace;
pub mod process;
pub mod proxy;
pub mod recipe;
pub mod refusals;
pub mod servers;
pub mod service;
pub mod settings;
pub mod simulation;
pub mod stores;
pub mod takeover;
pub mod targets;
pub mod trace;
