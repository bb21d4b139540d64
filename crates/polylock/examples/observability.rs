//! Logs and metrics: every acquisition and hold is a `tracing` span, and measurements go to a recorder of the `metrics` crate.
//!
//! ```text
//! cargo run -p polylock --example observability --features metrics
//! ```
//!
//! A service installs an exporter in the place of the recorder that prints here: the other examples have `--metrics-listen`, and `opentelemetry`
//! exports the spans.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use polylock::Locks;
use tracing::Level;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;

    let locks = Locks::connect("memory:").await?;
    for _ in 0..3 {
        let guard = locks.lock("orders/42").acquire().await?;
        let busy = locks.lock("orders/42").wait(Duration::from_millis(20)).acquire().await;
        println!("meanwhile: {}", busy.expect_err("the lock is held"));
        guard.release().await?;
    }
    // Completes what is logged and measured in the background.
    locks.close(Duration::from_secs(5)).await;

    let mut lines: Vec<String> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<String> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count.to_string(),
                DebugValue::Gauge(level) => level.to_string(),
                DebugValue::Histogram(samples) => format!("{} samples", samples.len()),
            };
            format!("{} {{{}}} {value}", key.key().name(), labels.join(", "))
        })
        .collect();
    lines.sort();
    println!("{}", lines.join("\n"));
    Ok(())
}
