//! Server databases under faults, under other settings than their defaults, and behind poolers; and with planted bugs.

mod callers;
mod credentials;
mod dropped;
mod foreign_rows;
mod mariadb;
pub(crate) mod pessimistic;
mod postgres;
mod precedence;
mod search_path;
mod tls;
mod upgrade;
mod without_listener;
