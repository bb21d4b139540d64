//! The names of broken locks, as a stream of lines.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{body::Body, extract::State, response::IntoResponse};
use futures_util::StreamExt;
use http::header;
use polylock_protocol::NameBody;
use tokio_stream::wrappers::{BroadcastStream, IntervalStream};

use crate::{access::Right, caller::Caller, service::Inner};

/// The time between two empty lines, which show that the server is alive.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Sends a line of JSON for each lock that is broken from now on, and empty lines in between.
pub(crate) async fn alerts(State(service): State<Arc<Inner>>, caller: Caller) -> impl IntoResponse {
    let names = BroadcastStream::new(service.alerts.subscribe()).filter_map(move |name| {
        // A reader that was too slow finds the marks of breaks with its renewals.
        let shown = name.ok().filter(|name| caller.may(Right::Inspect, name.as_str()));
        std::future::ready(shown.and_then(|name| {
            let mut line = serde_json::to_string(&NameBody::from(&name)).ok()?;
            line.push('\n');
            Some(line)
        }))
    });
    let heartbeats = IntervalStream::new(tokio::time::interval(HEARTBEAT)).map(|_| "\n".to_owned());
    let lines = futures_util::stream::select(names, heartbeats).map(Ok::<_, Infallible>);
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines))
}
