#![doc = include_str!("docs.md")]

mod error;
mod fenced;
mod fences;
mod identifier;
mod retry;
mod script;
mod supported;
mod update;
mod versioned;

pub use error::{Error, InvalidIdentifier, Result};
pub use fenced::FencedUpdate;
pub use fences::Fences;
pub use retry::retry;
pub use script::FenceScript;
pub use supported::Supported;
pub use update::Update;
pub use versioned::VersionedUpdate;
