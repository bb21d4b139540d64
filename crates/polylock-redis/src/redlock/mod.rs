#![doc = include_str!("docs.md")]

mod attempts;
mod backend;
mod config;
mod inspect;
mod node;
mod numbers;
mod open;
mod poll;
mod scripts;

pub use config::{Config, Restart};
pub use open::connect;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "redlock";
