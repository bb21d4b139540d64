//! The workspace itself: its structure, its packages and their dependencies, its prose, the examples and remedies
//! that users run, the program that plants bugs, and the generated pages.
#![allow(clippy::unwrap_used, reason = "tests")]

mod fenced_writes;
mod imports;
mod metrics;
mod packages;
mod pages;
mod schema;
mod structure;
mod supervisor;
mod swap;
mod trees;
mod words;
