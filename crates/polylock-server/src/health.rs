//! The health of the server, for the programs that start and route to it.

use std::sync::Arc;

use axum::extract::State;
use polylock_protocol::Problem;

use crate::{body::Refused, service::Inner};

/// Replies as long as the server runs.
pub(crate) async fn healthy() -> &'static str {
    "ok\n"
}

/// Replies if the store does, within two seconds. The cause is for the log: anybody may ask.
pub(crate) async fn ready(State(service): State<Arc<Inner>>) -> Result<&'static str, Refused> {
    if service.readiness.of(&service.locks).await {
        return Ok("ok\n");
    }
    let detail = "the log of the server has the cause";
    Err(Refused(Problem::new("unavailable", "the store does not reply", 503, detail)))
}
