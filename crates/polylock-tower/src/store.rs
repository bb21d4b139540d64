//! The contract of a store of tokens.

use polylock_core::FencingToken;

/// The outcome of raising the token of a resource.
#[derive(Debug)]
pub enum Raised<P> {
    /// The token was recorded. The resource is reserved until the permit is dropped.
    Accepted(P),
    /// A greater token was recorded before. Nothing has changed.
    Stale {
        /// The greater token.
        current: FencingToken,
    },
}

/// Stores the greatest token of each resource.
///
/// An implementation must keep two promises, for all processes of the service together:
///
/// 1. After [`raise`](Self::raise) has accepted a token, it accepts no smaller one for this resource.
/// 2. While a permit of a resource exists, it accepts no other token for this resource: it waits. The layer keeps the permit until the
///    request was handled. A permit may be dropped at any point.
///
/// In a database, `raise` commits the raised fence, then begins a transaction that locks its row, and compares again; the permit is that
/// transaction, and its rollback changes nothing.
pub trait TokenStore: Clone + Send + Sync + 'static {
    /// Reserves a resource until it is dropped.
    type Permit: Send + 'static;
    /// The error if a token can't be compared.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Records `token` for `resource` if no greater one was recorded before, and waits until no other permit of the resource exists.
    ///
    /// # Errors
    /// Any error: the layer logs it and answers 503.
    ///
    /// # Cancel safety
    /// After a drop the token may or may not be recorded. No permit remains.
    fn raise(
        &self,
        resource: &str,
        token: FencingToken,
    ) -> impl Future<Output = Result<Raised<Self::Permit>, Self::Error>> + Send;
}
