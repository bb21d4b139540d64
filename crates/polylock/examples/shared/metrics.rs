//! `--metrics-listen ADDR` of the examples: an endpoint that Prometheus reads. A service of your own calls the exporter in the same way.

use std::error::Error;

/// Removes `--metrics-listen ADDR` from `arguments`, and serves the metrics of this process at `http://ADDR/metrics`.
pub(crate) fn listen(arguments: &mut Vec<String>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(at) = arguments.iter().position(|argument| argument == "--metrics-listen") else {
        return Ok(());
    };
    let address =
        arguments.get(at + 1).ok_or("--metrics-listen needs an address, such as 127.0.0.1:9464")?.clone();
    arguments.drain(at..at + 2);
    if cfg!(not(feature = "metrics")) {
        return Err("build the example with --features metrics".into());
    }
    metrics_exporter_prometheus::PrometheusBuilder::new()
        // The limits of the buckets of histograms, in seconds. Without them, the exporter sends quantiles, which can't be added up.
        .set_buckets(&[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0, 120.0, 600.0])?
        .with_http_listener(address.parse::<std::net::SocketAddr>()?)
        .install()?;
    eprintln!("metrics at http://{address}/metrics");
    Ok(())
}
