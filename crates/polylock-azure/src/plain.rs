//! Requests to the container without the SDK, for measurements of what the SDK and the store add to them.

use azure_core::http::{Method, Request, Url, headers::HeaderName};
use polylock_core::ConfigError;

use crate::{account::Credential, blobs::VERSION, config::Config, wire::Wire};

/// A plain HTTP client of a container, on one pool of connections, with the credentials of a configuration.
#[derive(Debug)]
pub struct PlainClient {
    wire: Wire,
    container: Url,
}

/// The reply to a request.
#[derive(Debug)]
#[non_exhaustive]
pub struct PlainReply {
    /// The status code.
    pub status: u16,
    /// The ETag of the blob.
    pub etag: Option<String>,
}

impl PlainClient {
    /// Creates the client, or returns `None` if the configuration has a token credential, which only the SDK can use.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is invalid.
    pub fn new(config: &Config) -> Result<Option<Self>, ConfigError> {
        config.check()?;
        if matches!(config.credential, Some(Credential::Token(_))) {
            return Ok(None);
        }
        Ok(Some(Self { wire: Wire::new(config)?, container: config.container_url()? }))
    }

    /// Sends `PUT` without a body to the blob at the path `blob`, or to the container if that is empty.
    ///
    /// # Errors
    /// If there is no reply.
    pub async fn put(
        &self,
        blob: &str,
        query: &[(&str, &str)],
        headers: &[(&'static str, &str)],
    ) -> azure_core::Result<PlainReply> {
        let mut url = self.container.clone();
        if let (false, Ok(mut path)) = (blob.is_empty(), url.path_segments_mut()) {
            path.extend(blob.split('/'));
        }
        url.query_pairs_mut().extend_pairs(query);
        let mut request = Request::new(url, Method::Put);
        for (name, value) in [("x-ms-version", VERSION), ("content-length", "0")].iter().chain(headers) {
            request.insert_header(HeaderName::from_static(name), (*value).to_owned());
        }
        let reply = self.wire.send_plain(&request).await?;
        let etag = reply.headers.get("etag").and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        Ok(PlainReply { status: reply.status, etag })
    }
}
