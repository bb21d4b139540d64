//! The status of locks, and breaks, for people and programs in any language.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, Query, State},
};
use polylock_core::{Entry, LockStatus};
use serde::{Deserialize, Serialize};

use crate::{
    access::Right,
    body::{OptionalBody, Refused},
    caller::Caller,
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
    force: bool,
}

/// A lock.
#[derive(Debug, Serialize)]
pub(crate) struct LockObject {
    name: String,
    holders: Vec<EntryObject>,
    waiters: Vec<EntryObject>,
}

/// A holder or a waiter.
#[derive(Debug, Serialize)]
pub(crate) struct EntryObject {
    mode: &'static str,
    owner: String,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    age_ms: u64,
    expires_in_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<String>,
}

/// Returns whole milliseconds.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<&Entry> for EntryObject {
    fn from(entry: &Entry) -> Self {
        Self {
            mode: entry.mode.code(),
            owner: entry.owner.as_str().to_owned(),
            label: entry.label.clone(),
            fencing_token: entry.token.map(|token| token.get()),
            age_ms: ms(entry.age),
            expires_in_ms: ms(entry.expires_in),
            broken: entry.broken.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&LockStatus> for LockObject {
    fn from(status: &LockStatus) -> Self {
        Self {
            name: status.name.to_string(),
            holders: status.holders.iter().map(Into::into).collect(),
            waiters: status.waiters.iter().map(Into::into).collect(),
        }
    }
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
    OptionalBody(options): OptionalBody<BreakOptions>,
) -> Result<Json<Vec<EntryObject>>, Refused> {
    caller.ensure(Right::Break, &name)?;
    let mut order = service.locks.break_lock(&name);
    if let Some(reason) = options.reason {
        order = order.reason(reason);
    }
    if options.force {
        order = order.force();
    }
    Ok(Json(order.await?.iter().map(Into::into).collect()))
}
