//! The layer below the SDK's requests: connections, signatures, and lease ids.
//!
//! A lease id authorizes a release, and the SDK writes the headers with lease ids into its log. So the SDK never receives a real lease id:
//! a request has [`OWN_LEASE`] in the header, and the id itself in its context. This layer puts the id in below the log, and takes it out
//! of the reply again.

use std::{error::Error as _, fmt, time::Duration};

use async_trait::async_trait;
use azure_core::{
    Bytes,
    error::ErrorKind,
    http::{
        AsyncRawResponse, Body, Context, Request,
        headers::{HeaderName, HeaderValue, Headers as ReplyHeaders},
        policies::{Policy, PolicyResult},
    },
    time::{OffsetDateTime, to_rfc7231},
};
use polylock_core::{ConfigError, RequestId};
use reqwest::{Client, Method, redirect};

#[cfg(feature = "simulation")]
use crate::simulated::Connections;
use crate::{
    account::Credential,
    config::Config,
    exchange::{Failure, Reply},
    signing::{Headers, SharedKey},
    tls,
};

/// The placeholder for the id of the request's own lease.
pub(crate) const OWN_LEASE: &str = "own";
/// The placeholder for any other lease id.
const OTHER_LEASE: &str = "other";

/// A header of a reply: its request had been sent before, on a connection that ended without a reply.
pub(crate) const RESENT: &str = "polylock-resent";

/// The time after sending within which a request may arrive: for so long this machine retransmits it on an abandoned connection. The
/// network may delay a request for longer.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(10);

const LEASE: &str = "x-ms-lease-id";
const PROPOSED: &str = "x-ms-proposed-lease-id";

/// The id of a lease: the id of its request, as a GUID.
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

/// The transport of the SDK's requests.
#[derive(Debug)]
pub(crate) struct Wire {
    client: Client,
    #[cfg(feature = "simulation")]
    simulated: Connections,
    key: Option<SharedKey>,
}

impl Wire {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let builder =
            Client::builder().connect_timeout(config.operation_timeout).redirect(redirect::Policy::none());
        let encrypted = config.endpoint.scheme() == "https";
        let mut builder = tls::configure(builder, encrypted, &config.certificates)?;
        #[cfg(target_os = "linux")]
        {
            builder = builder.tcp_user_timeout(MAX_DELAY);
        }
        if !encrypted {
            // The emulator, which no proxy can reach.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| {
            ConfigError::new("store", format!("can't create the HTTP client: {}", describe(error)))
        })?;
        let key = match &config.credential {
            Some(Credential::Key(key)) => Some(key.clone()),
            _ => None,
        };
        Ok(Self {
            client,
            #[cfg(feature = "simulation")]
            simulated: Connections::default(),
            key,
        })
    }

    /// Returns the headers to send: with the lease id, and signed.
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
            // The signature requires it. This is the only use of the wall clock.
            headers.insert("x-ms-date".to_owned(), to_rfc7231(&OffsetDateTime::now_utc()));
            headers.insert("authorization".to_owned(), key.sign(request.method(), request.url(), &headers)?);
        }
        Ok(headers)
    }

    /// Sends a request without a body, and without the SDK.
    pub(crate) async fn send_plain(&self, request: &Request) -> azure_core::Result<Reply> {
        let headers = self.headers(request, None)?;
        self.exchange(request, &headers, Bytes::new()).await.map_err(|failure| failure.error)
    }

    async fn exchange(&self, request: &Request, headers: &Headers, body: Bytes) -> Result<Reply, Failure> {
        let method = Method::from_bytes(request.method().as_str().as_bytes()).unwrap_or_default();
        let mut builder = self.client.request(method, request.url().clone()).body(body);
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        let request = builder.build()?;
        #[cfg(feature = "simulation")]
        if let Some(reply) = self.simulated.exchange(&request).await {
            return reply;
        }
        let response = self.client.execute(request).await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Ok(Reply { status, headers, body: response.bytes().await? })
    }
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
            return Err(azure_core::Error::with_message(ErrorKind::Other, "the request's body is a stream"));
        };
        let headers = self.headers(request, lease)?;
        let mut resent = false;
        let reply = match self.exchange(request, &headers, body.clone()).await {
            // The service closes idle connections, perhaps while this request was in transit. The request may have arrived or not: every
            // request may arrive twice, and the refusal of the second copy may be caused by the first.
            Err(failure) if failure.is_disconnected => {
                resent = true;
                self.exchange(request, &headers, body).await
            }
            reply => reply,
        };
        let reply = reply.map_err(|failure| failure.error)?;
        let mut headers = ReplyHeaders::new();
        if resent {
            headers.insert(RESENT, "true");
        }
        for (name, value) in &reply.headers {
            let Ok(value) = value.to_str() else { continue };
            let value = match (name.as_str(), lease) {
                (LEASE, Some(LeaseId(id))) if value.eq_ignore_ascii_case(id) => OWN_LEASE,
                (LEASE, _) => OTHER_LEASE,
                _ => value,
            };
            let name = HeaderName::from(name.as_str().to_owned());
            headers.insert(name, HeaderValue::from(value.to_owned()));
        }
        Ok(AsyncRawResponse::from_bytes(reply.status.into(), headers, reply.body))
    }
}

/// Returns an error in one line, without its URL, which may contain a signature.
fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
