//! A database on a server: the part of the stores that PostgreSQL and MySQL share.

pub(crate) mod connection;
pub(crate) mod driver;
pub(crate) mod idle;
mod keeper;
mod late;
mod limit;
pub(crate) mod literal;
pub(crate) mod locks;
pub(crate) mod pool;
mod raise;
pub(crate) mod records;
pub(crate) mod tables;
