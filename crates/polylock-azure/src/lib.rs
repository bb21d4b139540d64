#![doc = include_str!("docs.md")]

mod account;
mod attempts;
mod backend;
mod bell;
mod blobs;
mod breaks;
mod config;
mod driver_keys;
mod error;
mod grants;
mod inspect;
mod names;
mod open;
mod record;
mod signing;
mod tls;
mod tokens;
mod turns;
mod wire;

pub use self::{bell::Bell, config::Config, open::connect};
pub use azure_core;

/// What the store is called.
const NAME: &str = "az";
