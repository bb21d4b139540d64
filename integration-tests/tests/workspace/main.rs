//! The workspace itself: its structure, its packages and their dependencies, its prose, the template of a store, the examples and remedies
//! that users run, the program that plants bugs, and the page of the safety
//! record.
#![allow(clippy::unwrap_used, reason = "tests")]

mod fenced_writes;
mod imports;
mod metrics;
mod packages;
mod safety;
mod schema;
mod structure;
mod supervisor;
mod swap;
mod template;
mod trees;
mod words;
