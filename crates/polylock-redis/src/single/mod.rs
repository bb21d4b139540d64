#![doc = include_str!("docs.md")]

mod backend;
mod config;
mod scripts;

pub use backend::connect;
pub use config::Config;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "redis";
