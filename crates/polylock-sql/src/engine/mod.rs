//! The part of the stores that all databases share: a backend over a [`Dialect`](dialect::Dialect), which owns the statements and the connections.

mod backend;
pub(crate) mod background;
pub(crate) mod columns;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod dialect;
#[cfg(test)]
#[cfg(all(feature = "postgres", feature = "mysql"))]
pub(crate) mod fuzz;
pub(crate) mod gate;
mod inspect;
mod poller;
pub(crate) mod records;
pub(crate) mod rows;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod server;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod source;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod strategy;
pub(crate) mod table;
pub(crate) mod version;

pub(crate) use backend::LeaseBackend;
