//! `--metrics-listen` in a build without the feature `metrics`: an error.

use std::{net::SocketAddr, sync::Arc};

use polylock::metrics::Metrics;

use crate::exit::{CONFIG, Failure};

/// Reports the missing feature.
pub(crate) fn serve(_: SocketAddr) -> Result<(), Failure> {
    Err(Failure::new(CONFIG, "--metrics-listen is not compiled in: enable feature \"metrics\""))
}

/// Returns nothing.
#[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "the library has its own"))]
pub(crate) fn recorder(_: &'static str) -> Option<Arc<dyn Metrics>> {
    None
}
