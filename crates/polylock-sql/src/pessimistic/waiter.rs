//! A task that waits for a lock on behalf of a request: the database's own waiting.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Operation, Request, Result, SystemClock};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::{
    host::{Host, Identity},
    session::Session,
};

/// How long after a cancellation it is clear that it came too early, before the statement that it was to end.
const AGAIN: Duration = Duration::from_millis(50);

/// The task. Dropped, it is stopped, and its connection closed.
#[derive(Debug)]
pub(super) struct Waiter {
    host: Arc<dyn Host>,
    identity: Identity,
    task: JoinHandle<Result<Session>>,
    /// Closed when the task has ended.
    ended: watch::Receiver<()>,
    withdrawn: Arc<Notify>,
}

impl Waiter {
    /// Has `session` wait.
    pub(super) fn start(host: Arc<dyn Host>, mut session: Session, request: &Request) -> Self {
        let (identity, withdrawn) = (session.identity(), Arc::new(Notify::new()));
        let (ends, ended) = watch::channel(());
        let (name, mode, limit) = (request.name.clone(), request.mode, request.place_ttl());
        let task = tokio::spawn({
            let (host, withdrawn) = (host.clone(), withdrawn.clone());
            async move {
                let waited = {
                    let mut waiting = std::pin::pin!(session.wait(&name, mode, limit));
                    tokio::select! {
                        waited = &mut waiting => waited,
                        () = withdrawn.notified() => loop {
                            cancel(&*host, identity).await?;
                            if let Some(waited) = SystemClock.before(SystemClock.now() + AGAIN, &mut waiting).await {
                                // Cancelled, or granted at the last moment: its owner leaves either way.
                                break waited.or(Ok(()));
                            }
                        },
                    }
                };
                drop(ends);
                waited.map(|()| session).map_err(|error| {
                    if host.is_over(&error) {
                        let advice = "the server has ended the transaction in which it waited";
                        return host.busy(Operation::Wait, advice.to_owned());
                    }
                    host.failed(Operation::Wait, error)
                })
            }
        });
        Self { host, identity, task, ended, withdrawn }
    }

    pub(super) const fn identity(&self) -> Identity {
        self.identity
    }

    /// Ready when it waits no more.
    pub(super) fn end(&self) -> impl Future<Output = ()> + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// What it has come to: a session that holds the lock.
    ///
    /// # Errors
    /// If the wait failed. Its connection is closed.
    pub(super) async fn outcome(&mut self) -> Result<Session> {
        let cut_off = |_| Err(self.host.failed(Operation::Wait, sqlx::Error::WorkerCrashed));
        (&mut self.task).await.unwrap_or_else(cut_off)
    }

    /// Ends the waiting: a session with nothing going on on it, which may hold the lock.
    ///
    /// # Errors
    /// If the wait failed, or can't be ended. Its connection is closed, and the server may not know yet.
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

async fn cancel(host: &dyn Host, identity: Identity) -> Result<()> {
    host.aside(Operation::Release, &host.statements().cancel, &identity.arguments()).await.map(drop)
}
