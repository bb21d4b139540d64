//! The benchmark of polylock: a store that a program names, and beside it the store's own driver without polylock, in the same run.
//!
//! The command `polylock bench` of `polylock-cli` uses it, and so does the benchmark of this workspace. A program with a store of its own
//! runs the same parts on it:
//!
//! ```no_run
//! use std::{io, process::Command, sync::Mutex};
//!
//! use polylock::StoreUrl;
//! use polylock_bench::{Children, Event, Settings, Subject, measure};
//!
//! # #[tokio::main] async fn main() -> polylock_bench::Result<()> {
//! let subject = Subject::new(StoreUrl::parse("mystore://host")?, "mystore://host")?;
//! // The same program, with an argument that makes it call `run_child`.
//! let children = Children::new(|| {
//!     let mut command = Command::new(std::env::current_exe()?);
//!     command.arg("child");
//!     Ok::<_, io::Error>(command)
//! });
//! let outcomes = Mutex::new(Vec::new());
//! let settings = Settings::quick();
//! let observe = |event| {
//!     if let Event::Ended { part, outcome } = event {
//!         outcomes.lock().expect("no thread panics").push((part, outcome));
//!     }
//! };
//! let measured = measure(&subject, &children, &settings, &observe).await;
//! subject.clean_up().await?;
//! measured
//! # }
//! ```
//!
//! # What the numbers mean
//!
//! * Machines, disks and networks differ, so compare the ratio to the raw driver, which is measured in turns with the store.
//! * A rate of a contended lock alone says nothing: a releaser that acquires its own lock again at once is fast, and starves the others. So
//!   a [`Summary`] has the hand-over, the longest wait and the fairness beside the rate.
//! * The histories of contended locks are checked. A store that breaks a promise has no numbers.
//!
//! # Features
//!
//! | feature | effect |
//! |---|---|
//! | `sqlite`, `postgres`, `mysql`, `redis`, `zookeeper`, `azure` | the store of that name, and its raw driver |
//! | `tls`, `sasl` | as in `polylock` |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod child;
mod child_main;
pub mod contended;
mod error;
pub mod handover;
pub mod held;
pub mod html;
pub mod kill;
mod machine;
mod opened;
pub mod own_locks;
pub mod process;
pub mod raw;
pub mod report;
pub mod results;
mod settings;
mod subject;
mod suite;
mod summary;
mod times;
pub mod uncontended;
pub mod waiters;

pub use child::Children;
pub use child_main::run_child;
pub use error::{Error, Result};
pub use kill::Kills;
pub use machine::Machine;
pub use opened::Opened;
pub use raw::{Floor, RawClient};
pub use results::{Measured, Outcome, Report};
pub use settings::{Part, Settings};
pub use subject::{PREFIX, Subject};
pub use suite::{Event, measure};
pub use summary::Summary;
pub use times::Times;
pub use waiters::Drained;
