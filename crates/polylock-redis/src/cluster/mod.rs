#![doc = include_str!("docs.md")]

mod config;
mod connect;
#[cfg(test)]
mod fuzz;
mod keep_alive;
mod nodes;
mod query_order;
mod topology;

pub use config::Config;
pub use connect::connect;
pub(crate) use nodes::Nodes;

use crate::hosts::Deployment;

const NAME: &str = Deployment::Cluster.name();
