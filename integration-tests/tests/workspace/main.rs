//! The workspace itself: its packages and their dependencies, its prose, and the template of a store.
#![allow(clippy::unwrap_used, reason = "tests")]

mod packages;
mod template;
mod trees;
mod words;
