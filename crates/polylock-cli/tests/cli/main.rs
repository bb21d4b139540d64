//! The command line, used as a program: its exit codes, signals, output and environment.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bench;
mod check;
mod completion;
mod descendants;
mod elect;
mod environment;
mod exit_codes;
mod fifo;
mod handles;
mod loss;
mod mistakes;
mod nested;
mod once;
mod output;
mod serve;
mod several_locks;
mod signals;
mod slots;
mod support;
mod terminal;
mod unread;
mod watch;
