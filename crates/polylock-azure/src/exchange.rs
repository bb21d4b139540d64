//! The outcome of one exchange with the service.

use azure_core::{
    Bytes,
    error::{Error, ErrorKind},
};
use reqwest::header::HeaderMap;

/// The reply to a request.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An exchange without a reply.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// True if the connection ended before the reply arrived.
    pub(crate) is_disconnected: bool,
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let is_disconnected = !error.is_connect() && !error.is_timeout() && !error.is_builder();
        let kind = if error.is_connect() { ErrorKind::Connection } else { ErrorKind::Io };
        let error = Error::with_error(kind, error.without_url(), "the request failed");
        Self { error, is_disconnected }
    }
}
