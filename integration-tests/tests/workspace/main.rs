//! The workspace itself: its structure, its packages and their dependencies, its prose, the template of a store, the examples and remedies
//! that users run, and the program that plants bugs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod fenced_update;
mod imports;
mod packages;
mod schema;
mod structure;
mod supervisor;
mod swap;
mod template;
mod trees;
mod words;
