//! Traces with OpenTelemetry: the span `polylock.acquire` is part of the trace of the work that needs the lock, and the span `polylock.hold`,
//! which may outlive it, has a link to that trace.
//!
//! ```text
//! cargo run -p polylock --example opentelemetry
//! ```
//!
//! It prints the spans. A service replaces the exporter by that of the crate `opentelemetry-otlp`, and sends them to a collector, in batches.
//! Its metrics go to the same collector through its Prometheus receiver: see the other examples with `--metrics-listen`.

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use polylock::Locks;
use tracing::{Instrument, info_span};
use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name("billing").build())
        .with_simple_exporter(opentelemetry_stdout::SpanExporter::default())
        .build();
    let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer("billing"));
    tracing_subscriber::registry().with(traces).init();

    let locks = Locks::connect("memory:").await?;
    let work = async {
        let guard = locks.lock("orders/42").acquire().await?;
        guard.run(async { tokio::task::yield_now().await }).await
    };
    work.instrument(info_span!("pay", order = 42)).await?;

    // Completes the spans in the background, then exports the rest.
    locks.close(Duration::from_secs(5)).await;
    provider.shutdown()?;
    Ok(())
}
