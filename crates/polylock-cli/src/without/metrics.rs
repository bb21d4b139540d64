//! `--metrics-listen` in a build without the feature `metrics`: an error.

use std::net::SocketAddr;

use crate::exit::{CONFIG, Failure};

/// Reports the missing feature.
pub(super) fn serve(_: SocketAddr) -> Result<(), Failure> {
    Err(Failure::new(CONFIG, "--metrics-listen is not compiled in: enable feature \"metrics\""))
}
