//! `polylock top` in a build without the feature `top`: an error.

use crate::{
    args::Global,
    exit::{CONFIG, Failure},
    output::Output,
};

/// Reports the missing feature.
pub(crate) async fn top(_: &Global, _: &str, _: &Output) -> Result<u8, Failure> {
    Err(Failure::new(CONFIG, "`polylock top` is not compiled in: enable feature \"top\""))
}
