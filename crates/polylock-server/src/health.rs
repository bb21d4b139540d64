//! The health of the server, for the programs that start and route to it.

use std::sync::Arc;

use axum::extract::State;

use crate::{body::Refused, service::Inner};

/// Replies as long as the server runs.
pub(crate) async fn healthy() -> &'static str {
    "ok\n"
}

/// Replies if the store does, within two seconds.
pub(crate) async fn ready(State(service): State<Arc<Inner>>) -> Result<&'static str, Refused> {
    service.readiness.of(&service.locks).await.map(|()| "ok\n").map_err(Refused)
}
