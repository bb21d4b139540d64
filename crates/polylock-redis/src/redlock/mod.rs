#![doc = include_str!("docs.md")]

mod admission;
mod backend;
mod config;
mod connect;
mod enlist;
#[cfg(test)]
mod fuzz;
mod in_time;
mod inspect;
mod keep_alive;
mod list;
mod membership;
mod node;
mod numbers;
mod park;
mod poll;
mod proposals;
#[cfg(test)]
mod proposals_tests;
mod raise;
mod scripts;
mod server_votes;
mod tally;
mod withdrawals;

pub use config::{Config, Restart};
pub use connect::{admit, connect};

use crate::hosts::Deployment;

const NAME: &str = Deployment::Redlock.name();
