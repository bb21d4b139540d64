//! `polylock serve` in a build without the feature `serve`: an error.

use crate::{
    args::{Global, Serve},
    exit::{CONFIG, Failure},
    output::Output,
};

/// Reports the missing feature.
pub(crate) async fn serve(_: &Global, _: &Serve, _: &Output) -> Result<u8, Failure> {
    Err(Failure::new(CONFIG, "`polylock serve` is not compiled in: enable feature \"serve\""))
}
