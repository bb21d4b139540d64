//! `polylock run` with real servers, and in process namespaces.

mod bench;
mod check;
mod container;
mod handover;
mod increments;
mod lost_release;
mod namespaces;
mod once;
mod outage;
mod pid_reuse;
mod several_locks;
mod takeover;
mod unkillable;
mod warden_end;
mod warnings;
