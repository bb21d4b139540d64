//! `--metrics-listen`: the metrics of a run or of a server for Prometheus, by HTTP.

use std::{net::SocketAddr, sync::Arc, thread};

use metrics_exporter_prometheus::PrometheusBuilder;
use polylock::metrics::{Metrics, Recorder};

use crate::exit::{CONFIG, Failure};

/// The upper limits of the buckets of all histograms, in seconds: from a fast server to a long hold. `docs/metrics.md` shows them.
const BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];

/// Serves the metrics at `address` until the process ends, in a thread of its own: a slow reader delays nothing.
///
/// # Errors
/// If the address can't be used.
pub(crate) fn serve(address: SocketAddr) -> Result<(), Failure> {
    let install = move || -> Result<(), String> {
        let builder = PrometheusBuilder::new().set_buckets(&BUCKETS).map_err(|error| error.to_string())?;
        builder.with_http_listener(address).install().map_err(|error| error.to_string())
    };
    // Outside of the runtime of this thread, the exporter starts its own.
    let installed =
        thread::spawn(install).join().unwrap_or_else(|_| Err("its thread has panicked".to_owned()));
    installed.map_err(|error| {
        let problem =
            format!("--metrics-listen: can't listen at {address}: {error}; choose another address or port");
        Failure::new(CONFIG, problem)
    })
}

/// Returns the receiver of the measurements of a store.
#[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "the library has its own"))]
pub(crate) fn recorder(backend: &'static str) -> Option<Arc<dyn Metrics>> {
    Some(Arc::new(Recorder::new(backend)))
}
