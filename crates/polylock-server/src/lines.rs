//! Replies that are streams of lines: JSON, or server-sent events.

use std::{convert::Infallible, fmt::Display, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, header};

/// The longest time between two lines: an empty one shows that the server is alive, and finds a client that is gone.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// Returns the reply with these lines of JSON, in the form that the client accepts. `None` is a heartbeat.
pub(crate) fn reply(
    headers: &HeaderMap,
    lines: impl Stream<Item = Option<impl Display>> + Send + 'static,
) -> Response {
    let is_event_stream = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/event-stream"));
    let lines = lines.map(move |line| Ok::<_, Infallible>(text(line, is_event_stream)));
    let kind = if is_event_stream { "text/event-stream" } else { "application/x-ndjson" };
    // nginx would keep the lines until there are many.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), "no");
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store"), unbuffered];
    (headers, Body::from_stream(lines)).into_response()
}

fn text(line: Option<impl Display>, is_event_stream: bool) -> String {
    match (line, is_event_stream) {
        (Some(line), false) => format!("{line}\n"),
        (Some(line), true) => format!("data: {line}\n\n"),
        (None, false) => "\n".to_owned(),
        (None, true) => ":\n\n".to_owned(),
    }
}
