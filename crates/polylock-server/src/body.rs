//! The bodies of messages: JSON, or a problem.

use std::time::Duration;

use axum::{
    Json,
    body::{Bytes, HttpBody},
    extract::{FromRequest, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use polylock_core::{Clock, Error, SystemClock};
use polylock_protocol::{InvalidBody, PROBLEM, Problem};
use serde::de::DeserializeOwned;

/// The time within which a body must arrive.
const ARRIVAL: Duration = Duration::from_secs(10);

/// A refused or failed operation.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Problem);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self((&error).into())
    }
}

impl From<InvalidBody> for Refused {
    fn from(error: InvalidBody) -> Self {
        Self((&error).into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            let seconds = problem.retry_after_us.unwrap_or_default().div_ceil(1_000_000).max(1);
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The JSON body of an operation.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

/// The JSON body of an operation; the default value without a body.
#[derive(Debug)]
pub(crate) struct OptionalBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        if request.body().size_hint().exact() == Some(0) {
            return Ok(Self(T::default()));
        }
        Body::from_request(request, state).await.map(|Body(body)| Self(body))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let content = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if content.is_none_or(|kind| !kind.trim_start().to_ascii_lowercase().starts_with("application/json"))
        {
            let detail = "send the header Content-Type: application/json";
            return Err(Refused(Problem::new("media-type", "the body is not JSON", 415, detail)));
        }
        let arrival = SystemClock.before(SystemClock.now() + ARRIVAL, Bytes::from_request(request, state));
        let bytes = arrival.await.ok_or_else(|| {
            let detail = format!("a body must arrive within {} s", ARRIVAL.as_secs());
            Refused(Problem::new("timeout", "the body has not arrived", 408, detail))
        })?;
        let bytes = bytes.map_err(|rejection| {
            let status = rejection.status().as_u16();
            Refused(Problem::new("invalid-body", "the body can't be read", status, rejection.body_text()))
        })?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            Refused(Problem::new(
                "invalid-body",
                "the body of the request is invalid",
                422,
                error.to_string(),
            ))
        })
    }
}
