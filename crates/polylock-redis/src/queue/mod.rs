//! A queue for each lock with hand-over by the server, written once for one server, the primary that Sentinels watch, and a cluster.

mod backend;
mod scripts;
mod servers;

pub(crate) use backend::{Client, Opening};
pub(crate) use scripts::Scripts;
