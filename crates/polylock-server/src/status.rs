//! The status of locks, and breaks, for people and programs in any language.

use std::{future::IntoFuture, sync::Arc};

use axum::{
    Json,
    extract::{Path, Query, State},
};
use http::HeaderMap;
use polylock_core::time_limit;
use polylock_protocol::values::token_of;
use serde::Deserialize;

use crate::{
    access::Right,
    body::{OptionalBody, Refused},
    caller::Caller,
    expiry::api_limit_of,
    objects::{EntryObject, LockObject},
    service::Inner,
};

/// The names to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prefix {
    #[serde(default)]
    pub(crate) prefix: String,
}

/// The body of a break.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BreakOptions {
    reason: Option<String>,
    /// The holds that the caller has seen; without any, those that the lock has now.
    fencing_tokens: Vec<u64>,
    force: bool,
}

pub(crate) async fn list(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Query(Prefix { prefix }): Query<Prefix>,
) -> Result<Json<Vec<LockObject>>, Refused> {
    let locks = service.locks.list(&prefix).await?;
    let shown = locks.iter().filter(|lock| caller.may(Right::Inspect, lock.name.as_str()));
    Ok(Json(shown.map(Into::into).collect()))
}

pub(crate) async fn inspect(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<LockObject>, Refused> {
    caller.ensure(Right::Inspect, &name)?;
    Ok(Json((&service.locks.inspect(&name).await?).into()))
}

/// Breaks a lock, and returns the holders that have the notice, or have lost the lock by force.
pub(crate) async fn break_lock(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    OptionalBody(options): OptionalBody<BreakOptions>,
) -> Result<Json<Vec<EntryObject>>, Refused> {
    caller.ensure(Right::Break, &name)?;
    let limit = api_limit_of(&service, &headers)?;
    let mut order = service.locks.break_lock(&name);
    if let Some(reason) = options.reason {
        order = order.reason(reason);
    }
    for token in options.fencing_tokens {
        order = order.token(token_of(token)?);
    }
    if options.force {
        order = order.force();
    }
    Ok(Json(time_limit::until(limit, order.into_future()).await?.iter().map(Into::into).collect()))
}
