//! `polylock check` in a build without the feature `check`: an error.

use std::process::ExitCode;

use crate::{
    args::{Check, Global},
    exit::{CONFIG, Failure},
    output::Output,
};

/// There are no child processes of a check.
pub(crate) fn worker() -> Option<ExitCode> {
    None
}

/// Reports the missing feature.
pub(crate) async fn check(_: &Global, _: &Check, _: &Output) -> Result<u8, Failure> {
    Err(Failure::new(CONFIG, "`polylock check` is not compiled in: enable feature \"check\""))
}
