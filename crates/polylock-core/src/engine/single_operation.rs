//! A single operation on a store without a lock of this process, for a program that offers the store to others.

use std::{future::Future, sync::Arc};

use tokio::sync::oneshot;

use super::{context::StoreContext, shared_hold::StoreHandle};
use crate::{Backend, Operation, Result, io};

impl StoreHandle {
    /// Carries `operation` out to its end. The caller drives it as long as that is useful (see
    /// [`foreground`](super::foreground)); then it continues, or begins again, on the I/O thread.
    pub(crate) async fn on_store<T, F, O>(&self, kind: Operation, operation: O) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
        O: Fn(Arc<dyn Backend>) -> F + Send + 'static,
    {
        let (context, name) = (self.context.clone(), self.context.backend());
        let Some(here) = self.foreground.store() else {
            let running = self.foreground.begin(kind, operation(context.store.backend.clone()))?;
            return running.await.map_err(|cause| io::failed(name, kind, cause))?;
        };
        let (reply, outcome) = oneshot::channel();
        let attempt = operation(here);
        let again = Again { context, kind, operation, reply };
        match self.foreground.drive(kind, attempt, again, Again::begin_on_thread).await {
            Some((Err(error), again)) if error.is_temporary() && error.retry_after().is_none() => {
                again.begin_on_thread();
            }
            Some((outcome, _)) => return outcome,
            None => {}
        }
        outcome.await.unwrap_or_else(|_| Err(io::without_result(name, kind)))
    }
}

/// An operation that the caller has begun, and its second attempt.
struct Again<T, O> {
    context: Arc<StoreContext>,
    kind: Operation,
    operation: O,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F, O> Again<T, O>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
    O: Fn(Arc<dyn Backend>) -> F,
{
    fn begin_on_thread(self) {
        let Self { context, kind, operation, reply } = self;
        let attempt = operation(context.store.backend.clone());
        let attempt = async move { drop(reply.send(attempt.await)) };
        // An error means that there is no thread. The caller then receives an error instead of a reply.
        context.spawn(kind, attempt).ok();
    }
}
