//! Redlock: a majority of real servers, with the network, the servers and the clients at fault; and with planted bugs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod schedules;
