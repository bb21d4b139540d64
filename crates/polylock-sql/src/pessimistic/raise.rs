//! Raises tokens.

use async_trait::async_trait;
use polylock_core::{FencingToken, RaiseToken, Request, Result};

use super::backend::PessimisticBackend;

#[async_trait]
impl RaiseToken for PessimisticBackend {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        self.server.raise(&request.name, to).await
    }
}
