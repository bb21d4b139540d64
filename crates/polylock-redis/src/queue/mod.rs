//! A queue for each lock with hand-over by the server. One server, the primary that Sentinels watch, and a cluster share this code.

mod backend;
mod scripts;
mod servers;

pub(crate) use backend::{Client, StoreBuilder};
pub(crate) use scripts::Scripts;
