//! The holders and waiters of a lock, read while an acquisition waits for it and its caller shows them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

use super::context::StoreContext;
use crate::{Inspect, LockName, Operation, Progress, Result};

/// The task that reads them; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct QueueReader(JoinHandle<()>);

impl QueueReader {
    /// Starts the task, which reads nothing before `progress` requests it. Returns `None` if the store can't be inspected.
    pub(super) fn start(context: &Arc<StoreContext>, name: &LockName, progress: &Progress) -> Option<Self> {
        let inspect = context.store.inspect.clone()?;
        let reading = keep_reading(context.clone(), inspect, name.clone(), progress.clone());
        // An error means that there is no thread, and no acquisition.
        context.io().ok()?.spawn(Operation::Inspect.as_str(), reading).ok().map(Self)
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_reading(
    context: Arc<StoreContext>,
    inspect: Arc<dyn Inspect>,
    name: LockName,
    progress: Progress,
) {
    // The same progress may have shown an earlier wait.
    progress.queue_read(None, &context.clock);
    loop {
        let interval = progress.queue_interest().await;
        let (inspect, name) = (inspect.clone(), name.clone());
        let status = read(&context, async move { inspect.inspect(&name).await }).await;
        // If the store can't be read, there is no state to show.
        progress.queue_read(status.ok(), &context.clock);
        match interval {
            Some(interval) => context.until(context.now() + interval).await,
            None => return,
        }
    }
}

/// Reads the store in a task of its own, which an abort does not interrupt.
pub(super) fn read<T, F>(context: &StoreContext, reading: F) -> BoxFuture<'static, Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let backend = context.backend();
    let reading = context.io().and_then(|io| io.spawn(Operation::Inspect.as_str(), reading));
    Box::pin(async move {
        let failed =
            |error| Err(crate::io::failed(backend, Operation::Inspect, crate::io::join_error(error)));
        reading?.await.unwrap_or_else(failed)
    })
}
