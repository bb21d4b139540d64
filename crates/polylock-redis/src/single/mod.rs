#![doc = include_str!("docs.md")]

mod config;
mod connect;

pub use config::Config;
pub use connect::connect;

use crate::hosts::Deployment;

const NAME: &str = Deployment::Single.name();
