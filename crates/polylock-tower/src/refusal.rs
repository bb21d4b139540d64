//! The replies to requests that do not pass.

use http::{HeaderValue, Response, StatusCode, header};
use polylock_core::FencingToken;

/// The reason for which a request does not pass.
#[derive(Debug)]
pub(crate) enum Refusal {
    Stale { resource: String, token: FencingToken, current: FencingToken },
    Missing { header: String },
    Malformed { header: String },
    Resource,
    Unavailable,
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Stale { .. } => StatusCode::PRECONDITION_FAILED,
            Self::Missing { .. } => StatusCode::PRECONDITION_REQUIRED,
            Self::Malformed { .. } | Self::Resource => StatusCode::BAD_REQUEST,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Stale { resource, token, current } => format!(
                "fencing token {token} is stale for {resource}: token {current} was recorded before, so the lock was lost: stop this \
                 work, and acquire the lock again to redo it"
            ),
            Self::Missing { header } => {
                format!("the request has no fencing token: send that of the lock in the header {header}")
            }
            Self::Malformed { header } => format!(
                "the header {header} is not a fencing token: send it once, in decimal digits, from 0 to {}",
                i64::MAX
            ),
            Self::Resource => "the name of the resource must have 1 to 255 bytes of UTF-8".to_owned(),
            Self::Unavailable => "the fencing token can't be checked now: try again later".to_owned(),
        }
    }

    /// Returns the reply, with problem details as its body.
    pub(crate) fn response<B: From<String>>(&self) -> Response<B> {
        let status = self.status();
        let body = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": self.detail(),
        });
        let mut response = Response::new(B::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
