//! The layer, and the service that it makes.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderName, Request, Response, request::Parts};
use polylock_core::{FencingToken, metrics};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    refusal::Refusal,
    store::{Raised, TokenStore},
};

/// The default header of the token, `Fencing-Token`.
pub const TOKEN_HEADER: HeaderName = HeaderName::from_static("fencing-token");

/// The longest name of a resource, in bytes: that of a lock's name.
const MAX_RESOURCE: usize = 255;

/// The resource of a request. `None`: the request is not guarded.
type ResourceOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
struct Settings {
    resource: ResourceOf,
    header: HeaderName,
    is_required: bool,
}

/// A layer that refuses requests with a stale fencing token. See the [crate](crate).
#[derive(Clone)]
pub struct FencingLayer<T> {
    tokens: T,
    settings: Settings,
}

impl<T: TokenStore> FencingLayer<T> {
    /// Creates a layer that guards the resource that `resource` returns for a request. A request without a resource passes unchecked, for
    /// example one that only reads.
    ///
    /// All requests that write the same data must have the same resource. The path of a URL has several spellings (`%34` is `4`), so prefer
    /// a parsed part of it.
    ///
    /// ```
    /// use polylock_tower::{FencingLayer, MemoryTokens};
    ///
    /// let layer = FencingLayer::new(MemoryTokens::default(), |request| {
    ///     let order: u64 = request.uri.path().strip_prefix("/orders/")?.parse().ok()?;
    ///     (!request.method.is_safe()).then(|| format!("orders/{order}"))
    /// });
    /// ```
    pub fn new(tokens: T, resource: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        let settings = Settings { resource: Arc::new(resource), header: TOKEN_HEADER, is_required: true };
        Self { tokens, settings }
    }

    /// Creates a layer that guards the resource in this header of a request: usually the name of the lock. Requests that only read (`GET`,
    /// `HEAD`, `OPTIONS`, `TRACE`) pass unchecked; another one without the header is refused with 400.
    pub fn by_header(tokens: T, header: HeaderName) -> Self {
        Self::new(tokens, move |request| {
            let values: Vec<_> = request.headers.get_all(&header).iter().collect();
            let resource = match values[..] {
                [value] => str::from_utf8(value.as_bytes()).unwrap_or_default(),
                _ => "",
            };
            (!request.method.is_safe()).then(|| resource.to_owned())
        })
    }

    /// Sets the header of the token, [`TOKEN_HEADER`] by default.
    #[must_use]
    pub fn token_header(mut self, header: HeaderName) -> Self {
        self.settings.header = header;
        self
    }

    /// Lets requests without a token pass. They are not guarded.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.settings.is_required = false;
        self
    }
}

impl Settings {
    /// Returns the resource and the token of a request; `None` if it is not guarded.
    fn read(&self, request: &Parts) -> Result<Option<(String, FencingToken)>, Refusal> {
        let Some(resource) = (self.resource)(request) else { return Ok(None) };
        let mut values = request.headers.get_all(&self.header).iter();
        let header = || self.header.to_string();
        let token = match (values.next(), values.next()) {
            (None, _) if !self.is_required => return Ok(None),
            (None, _) => return Err(Refusal::Missing { header: header() }),
            (Some(value), None) => parse(value.as_bytes()),
            (Some(_), Some(_)) => None,
        };
        let token = token.ok_or_else(|| Refusal::Malformed { header: header() })?;
        if resource.is_empty() || resource.len() > MAX_RESOURCE {
            return Err(Refusal::Resource);
        }
        Ok(Some((resource, token)))
    }
}

/// Returns the token in decimal digits.
fn parse(value: &[u8]) -> Option<FencingToken> {
    let digits = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    FencingToken::new(digits.parse::<i64>().ok()?)
}

impl<T: fmt::Debug> fmt::Debug for FencingLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencingLayer")
            .field("tokens", &self.tokens)
            .field("header", &self.settings.header)
            .field("is_required", &self.settings.is_required)
            .finish_non_exhaustive()
    }
}

impl<S, T: TokenStore> Layer<S> for FencingLayer<T> {
    type Service = Fencing<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        Fencing { inner, layer: self.clone() }
    }
}

/// A service behind a [`FencingLayer`].
#[derive(Debug, Clone)]
pub struct Fencing<S, T> {
    inner: S,
    layer: FencingLayer<T>,
}

impl<S, T, B, R> Service<Request<B>> for Fencing<S, T>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    T: TokenStore,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that is ready is used, and a new clone is not.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let (mut parts, body) = request.into_parts();
        let read = self.layer.settings.read(&parts);
        let tokens = self.layer.tokens.clone();
        Box::pin(async move {
            let guarded = match read {
                Ok(guarded) => guarded,
                Err(refusal) => return Ok(refusal.response()),
            };
            let permit = match guarded {
                None => None,
                Some((resource, token)) => match raise(&tokens, resource, token).await {
                    Ok(permit) => {
                        parts.extensions.insert(token);
                        Some(permit)
                    }
                    Err(refusal) => return Ok(refusal.response()),
                },
            };
            let response = inner.call(Request::from_parts(parts, body)).await;
            // From here on, the next request of the resource is handled.
            drop(permit);
            response
        })
    }
}

/// Records the token, or returns the reason for which the request does not pass.
async fn raise<T: TokenStore>(
    tokens: &T,
    resource: String,
    token: FencingToken,
) -> Result<T::Permit, Refusal> {
    match tokens.raise(&resource, token).await {
        Ok(Raised::Accepted(permit)) => Ok(permit),
        Ok(Raised::Stale { current }) => {
            metrics::fencing_rejected("http");
            tracing::warn!(resource, %token, %current, "a request with a stale fencing token was refused");
            Err(Refusal::Stale { resource, token, current })
        }
        Err(error) => {
            tracing::warn!(
                resource,
                error = &error as &dyn std::error::Error,
                "a fencing token could not be checked"
            );
            Err(Refusal::Unavailable)
        }
    }
}
