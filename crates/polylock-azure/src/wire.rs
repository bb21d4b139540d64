//! What is below the SDK's requests: the connections, the signature, and the ids of leases.
//!
//! Who knows the id of a lease can release it, and the SDK writes the headers that hold one into its log. So it never gets
//! to know one: a request carries [`OURS`] where the id belongs, and the id itself beside it, in the request's context. It is
//! put in here, below the log, and taken out of the answer again.

use std::{error::Error as _, fmt, time::Duration};

use async_trait::async_trait;
use azure_core::{
    Bytes,
    error::ErrorKind,
    http::{
        AsyncRawResponse, Body, Context, Request,
        headers::{HeaderName, HeaderValue, Headers as Answered},
        policies::{Policy, PolicyResult},
    },
    time::{OffsetDateTime, to_rfc7231},
};
use polylock_core::{ConfigError, RequestId};
use reqwest::{Client, Method, redirect};

use crate::{
    account::Credential,
    config::Config,
    signing::{Headers, SharedKey},
    tls,
};

/// What stands for the id of the request's own lease.
pub(crate) const OURS: &str = "ours";
/// And for any other.
const ANOTHERS: &str = "anothers";

/// In the headers of an answer: its request had been sent before, on a connection that ended without an answer.
pub(crate) const RESENT: &str = "polylock-resent";

/// How long after its sending a request may arrive: for so long this machine goes on sending it on a connection that was given up.
/// What is on its way through others' machines may come later.
pub(crate) const LATE: Duration = Duration::from_secs(10);

const LEASE: &str = "x-ms-lease-id";
const PROPOSED: &str = "x-ms-proposed-lease-id";

/// The id of a lease: that of the request which it is for, as a GUID.
#[derive(Clone)]
pub(crate) struct LeaseId(String);

impl LeaseId {
    pub(crate) fn of(request: RequestId) -> Self {
        let digits = format!("{:032x}", u128::from_be_bytes(request.to_bytes()));
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        Self(parts.join("-"))
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId(secret)")
    }
}

/// What the SDK sends its requests by.
#[derive(Debug)]
pub(crate) struct Wire {
    client: Client,
    key: Option<SharedKey>,
}

impl Wire {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let builder =
            Client::builder().connect_timeout(config.request_timeout).redirect(redirect::Policy::none());
        let mut builder = tls::prepare(builder, config.ca.as_deref())?;
        #[cfg(target_os = "linux")]
        {
            builder = builder.tcp_user_timeout(LATE);
        }
        if config.endpoint.scheme() == "http" {
            // An emulator, which no proxy knows.
            builder = builder.no_proxy();
        }
        let client = builder
            .build()
            .map_err(|error| ConfigError::new("store", format!("no client can be made: {}", told(error))))?;
        let key = match &config.credential {
            Some(Credential::Key(key)) => Some(key.clone()),
            _ => None,
        };
        Ok(Self { client, key })
    }

    /// The headers as they are sent: with the id of the lease, and signed.
    fn headers(&self, request: &Request, lease: Option<&LeaseId>) -> azure_core::Result<Headers> {
        let mut headers: Headers = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_lowercase(), value.as_str().to_owned()))
            .collect();
        if let Some(LeaseId(id)) = lease {
            for name in [LEASE, PROPOSED] {
                headers.entry(name.to_owned()).and_modify(|value| id.clone_into(value));
            }
        }
        if let Some(key) = &self.key {
            // The signature asks for it. Nothing else here goes by the wall clock.
            headers.insert("x-ms-date".to_owned(), to_rfc7231(&OffsetDateTime::now_utc()));
            headers.insert("authorization".to_owned(), key.sign(request.method(), request.url(), &headers)?);
        }
        Ok(headers)
    }

    async fn exchange(&self, request: &Request, headers: &Headers, body: Bytes) -> reqwest::Result<Answer> {
        let method = Method::from_bytes(request.method().as_str().as_bytes()).unwrap_or_default();
        let mut builder = self.client.request(method, request.url().clone()).body(body);
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        let response = builder.send().await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Ok(Answer { status, headers, body: response.bytes().await? })
    }
}

struct Answer {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: Bytes,
}

#[async_trait]
impl Policy for Wire {
    async fn send(
        &self,
        context: &Context,
        request: &mut Request,
        _: &[std::sync::Arc<dyn Policy>],
    ) -> PolicyResult {
        let lease = context.value::<LeaseId>();
        let Body::Bytes(body) = request.body().clone() else {
            return Err(azure_core::Error::with_message(ErrorKind::Other, "a body that is no bytes"));
        };
        let headers = self.headers(request, lease)?;
        let mut resent = false;
        let answer = match self.exchange(request, &headers, body.clone()).await {
            // The service closes connections that were idle for a while, perhaps while this was on its way. It may have arrived
            // or not: everything that is sent may come twice, and a refusal of the second may be the work of the first.
            Err(error) if is_cut(&error) => {
                resent = true;
                self.exchange(request, &headers, body).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| {
            let kind = if error.is_connect() { ErrorKind::Connection } else { ErrorKind::Io };
            azure_core::Error::with_error(kind, error.without_url(), "the request failed")
        })?;
        let mut headers = Answered::new();
        if resent {
            headers.insert(RESENT, "true");
        }
        for (name, value) in &answer.headers {
            let Ok(value) = value.to_str() else { continue };
            let value = match (name.as_str(), lease) {
                (LEASE, Some(LeaseId(id))) if value.eq_ignore_ascii_case(id) => OURS,
                (LEASE, _) => ANOTHERS,
                _ => value,
            };
            let name = HeaderName::from(name.as_str().to_owned());
            headers.insert(name, HeaderValue::from(value.to_owned()));
        }
        Ok(AsyncRawResponse::from_bytes(answer.status.into(), headers, answer.body))
    }
}

/// Whether a connection ended before the answer was there.
fn is_cut(error: &reqwest::Error) -> bool {
    !error.is_connect() && !error.is_timeout() && !error.is_builder()
}

/// An error in one line, without its URL, which may hold a signature.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
