//! A task that waits for a lock on behalf of a request, in a locking statement of the database.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Operation, Request, Result, SystemClock};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::{
    server::{Identity, LockServer},
    session::Session,
};

/// The time after which a cancellation without effect is repeated: it arrived before the statement that it was to end.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// A waiting task. A drop aborts the task and closes its connection.
#[derive(Debug)]
pub(super) struct Waiter {
    server: Arc<dyn LockServer>,
    identity: Identity,
    task: JoinHandle<Result<Session>>,
    /// Closed when the task has ended.
    ended: watch::Receiver<()>,
    withdrawn: Arc<Notify>,
}

impl Waiter {
    /// Starts a task in which `session` waits.
    pub(super) fn start(server: Arc<dyn LockServer>, mut session: Session, request: &Request) -> Self {
        let (identity, withdrawn) = (session.identity(), Arc::new(Notify::new()));
        let (ends, ended) = watch::channel(());
        let (name, mode, limit) = (request.name.clone(), request.mode, request.queue_lease());
        let task = tokio::spawn({
            let (server, withdrawn) = (server.clone(), withdrawn.clone());
            async move {
                let waited = {
                    let mut waiting = std::pin::pin!(session.wait(&name, mode, limit));
                    tokio::select! {
                        waited = &mut waiting => waited,
                        () = withdrawn.notified() => loop {
                            cancel(&*server, identity).await?;
                            if let Some(waited) = SystemClock.before(SystemClock.now() + CANCEL_INTERVAL, &mut waiting).await {
                                // Cancelled, or granted at the last moment: the caller leaves in either case.
                                break waited.or(Ok(()));
                            }
                        },
                    }
                };
                drop(ends);
                waited.map(|()| session).map_err(|error| {
                    if server.is_transaction_ended(&error) {
                        let advice = "the server ended the transaction of the waiter";
                        return server.temporary_error(Operation::Wait, advice.to_owned());
                    }
                    server.failed(Operation::Wait, error)
                })
            }
        });
        Self { server, identity, task, ended, withdrawn }
    }

    pub(super) const fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns a future that is ready when the task has stopped waiting.
    pub(super) fn end(&self) -> impl Future<Output = ()> + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// Returns the session, which holds the lock.
    ///
    /// # Errors
    /// If the wait failed. The connection is closed.
    pub(super) async fn outcome(&mut self) -> Result<Session> {
        let aborted = |_| Err(self.server.failed(Operation::Wait, sqlx::Error::WorkerCrashed));
        (&mut self.task).await.unwrap_or_else(aborted)
    }

    /// Stops the wait. Returns the session without a running statement; it may hold the lock.
    ///
    /// # Errors
    /// If the wait failed, or can't be stopped. The connection is closed, and the server may not have noticed that yet.
    pub(super) async fn withdraw(&mut self) -> Result<Session> {
        self.withdrawn.notify_one();
        self.outcome().await
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn cancel(server: &dyn LockServer, identity: Identity) -> Result<()> {
    server
        .on_side_connection(Operation::Release, &server.statements().cancel, &identity.arguments())
        .await
        .map(drop)
}
