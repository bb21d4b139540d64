//! Jobs that run once per period, for programs in any language.
//!
//! `POST /v1/jobs/NAME` replies with the stream of a [lock](crate::streams): the event `skipped` with the last run, if the job is not due, and
//! otherwise `granted` with the number of the `attempt`. No other attempt begins while the stream is open. Before the client closes it,
//! `POST /v1/jobs/NAME/outcome` records the outcome, on any server in front of the same store: the store refuses the outcome of an attempt
//! after which another one has begun.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use polylock_core::{LastRun, OnceBegin, Progress, RunOutcome};
use polylock_protocol::{
    InvalidBody,
    values::{owner_of, time_of, token_of},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    access::Right,
    body::{Body, OptionalBody, Refused},
    caller::Caller,
    expiry::limit_of,
    objects::ms,
    service::Inner,
    streams::{self, Acquired, Acquisition},
};

/// The body of an attempt. Times are texts, as `1d`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JobOptions {
    every: Option<String>,
    at: Option<String>,
    retries: Option<u32>,
    ttl: Option<String>,
    wait: Option<String>,
    owner: Option<String>,
    label: Option<String>,
    renew: bool,
}

/// The body of an outcome.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutcomeBody {
    fencing_token: u64,
    outcome: Outcome,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Succeeded,
    Failed,
}

/// The last run of a job. Times are those of the store, since 1970 in UTC.
#[derive(Debug, Serialize)]
pub(crate) struct RunObject {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    owner: String,
    label: String,
    fencing_token: u64,
    attempt: u32,
    started_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at_ms: Option<u64>,
    next_due_ms: u64,
}

impl From<LastRun> for RunObject {
    fn from(run: LastRun) -> Self {
        let outcome = run.outcome.as_str();
        let (ended_at, reason) = match run.outcome {
            RunOutcome::Succeeded { at } => (Some(at), None),
            RunOutcome::Failed { at, reason } => (Some(at), Some(reason)),
            _ => (None, None),
        };
        Self {
            outcome,
            reason,
            owner: run.owner.as_str().to_owned(),
            label: run.label,
            fencing_token: run.token.get(),
            attempt: run.attempt,
            started_at_ms: ms(run.started_at),
            ended_at_ms: ended_at.map(ms),
            next_due_ms: ms(run.next_due),
        }
    }
}

impl JobOptions {
    /// Returns the attempt with these settings, and true if the request is not to wait.
    fn attempt(
        &self,
        service: &Inner,
        name: &str,
        progress: &Progress,
    ) -> Result<(Acquisition, bool), InvalidBody> {
        let wait = time_of("wait", self.wait.as_deref())?;
        let mut job = service.locks.once(name).progress(progress).retries(self.retries.unwrap_or_default());
        if let Some(every) = time_of("every", self.every.as_deref())? {
            job = job.every(every);
        }
        if let Some(at) = time_of("at", self.at.as_deref())? {
            job = job.at(at);
        }
        if let Some(ttl) = time_of("ttl", self.ttl.as_deref())? {
            job = job.ttl(ttl);
        }
        if let Some(wait) = wait {
            job = job.wait(wait);
        }
        if let Some(owner) = &self.owner {
            job = job.owner(&owner_of(owner)?);
        }
        if let Some(label) = &self.label {
            job = job.label(label);
        }
        let acquisition: Acquisition = Box::pin(async move {
            Ok(match job.begin().await? {
                OnceBegin::Due(attempt) => {
                    let number = attempt.report.run().attempt;
                    Acquired::one(attempt.guard).with("attempt", number)
                }
                OnceBegin::Skipped(last) => Acquired::Not(json!({
                    "event": "skipped", "last_run": RunObject::from(last),
                })),
            })
        });
        Ok((acquisition, wait.is_some_and(|wait| wait.is_zero())))
    }
}

/// Begins an attempt of a job if it is due. The reply is the stream of its lock.
pub(crate) async fn begin(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    OptionalBody(mut options): OptionalBody<JobOptions>,
) -> Result<Response, Refused> {
    caller.ensure(Right::Exclusive, &name)?;
    limit_of(&service, &headers)?;
    options.owner = options.owner.or_else(|| caller.owner().map(|owner| owner.to_string()));
    let progress = Progress::default();
    let (acquisition, is_try) = options.attempt(&service, &name, &progress)?;
    let call = streams::Call { acquisition, progress, is_try, server_renews: options.renew };
    streams::open(service, caller, &headers, call).await
}

/// The reply with the last run of a job.
#[derive(Debug, Serialize)]
pub(crate) struct JobObject {
    last_run: Option<RunObject>,
}

/// Returns the last run of a job, if it has a recorded one.
pub(crate) async fn last_run(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<JobObject>, Refused> {
    caller.ensure(Right::Inspect, &name)?;
    let last_run = service.locks.once(&name).last_run().await?.map(Into::into);
    Ok(Json(JobObject { last_run }))
}

/// Records the outcome of an attempt.
pub(crate) async fn record(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    Body(body): Body<OutcomeBody>,
) -> Result<Response, Refused> {
    caller.ensure(Right::Exclusive, &name)?;
    limit_of(&service, &headers)?;
    let report = service.locks.once(&name).report(token_of(body.fencing_token)?).await?;
    match body.outcome {
        Outcome::Succeeded => report.succeeded().await?,
        Outcome::Failed => report.failed(body.reason.as_deref().unwrap_or("no reason")).await?,
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
