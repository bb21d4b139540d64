//! `polylock bench` in a build without the feature `check`: an error.

use std::process::ExitCode;

use crate::{
    args::{Bench, Global},
    exit::{CONFIG, Failure},
    output::Output,
};

/// There are no child processes of a benchmark.
pub(crate) fn worker() -> Option<ExitCode> {
    None
}

/// Reports the missing feature.
pub(crate) async fn bench(_: &Global, _: &Bench, _: &Output) -> Result<u8, Failure> {
    Err(Failure::new(CONFIG, "`polylock bench` is not compiled in: enable feature \"check\""))
}
