//! Locks as rows of an SQL database.
//!
//! | feature | store | module |
//! |---|---|---|
//! | `sqlite` | a SQLite file, shared by the processes of one machine | `sqlite` |
//! | `postgres` | a PostgreSQL database, for programs on many machines | `postgres` |
//! | `mysql` | a MySQL or MariaDB database, for programs on many machines | `mysql` |
//! | `tls` | encrypted connections to PostgreSQL and MySQL | |
//!
//! `pessimistic` is a second locking strategy for the two servers, and `optimistic` makes your own tables refuse late writes.
//!
//! Every store fulfils the whole contract of [`polylock_core::backend`]: a lock is a row under a unique index, inserted at the grant and
//! deleted at the release; waiters are rows of a second table, in order of arrival.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod engine;
#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod fuzz;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub mod optimistic;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod pessimistic;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[doc(hidden)]
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use engine::version::NextVersion;
