//! What was asked of a store.

use std::{fmt, future::Future, sync::Arc};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, Clock, KeepAlive, LockName, Operation, Release, Request, RequestId, Result,
    Standing, SystemClock, Wake, clock::Moment,
};
use tokio::sync::watch;

/// Writes down every operation that core asks for, when it was sent and when it was answered.
#[derive(Clone)]
pub struct Recording {
    inner: Arc<dyn Backend>,
    calls: watch::Sender<Vec<Call>>,
}

/// One operation that was asked for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// What.
    pub operation: Operation,
    /// With what request.
    pub request: Request,
    /// When it was sent.
    pub sent: Moment,
    /// When it was answered, if it was, and whether the answer was no error.
    pub answered: Option<(Moment, bool)>,
    /// Whether the answer was that the request stands in the queue.
    pub queued: bool,
}

impl Recording {
    /// Nothing yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, calls: watch::Sender::new(Vec::new()) }
    }

    /// All that was asked for so far, in order of sending.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    /// Every `operation` so far.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Vec<Call> {
        self.calls.borrow().iter().filter(|call| call.operation == operation).cloned().collect()
    }

    /// The ids of the requests so far, in order of their first operation.
    #[must_use]
    pub fn ids(&self) -> Vec<RequestId> {
        let mut ids = Vec::new();
        for call in self.calls.borrow().iter() {
            if !ids.contains(&call.request.id) {
                ids.push(call.request.id);
            }
        }
        ids
    }

    /// Ready once what was asked for so far is as `enough` wants it.
    pub async fn until(&self, enough: impl Fn(&[Call]) -> bool + Send + Sync) {
        // The sender lives in `self`, so the channel can't be closed.
        drop(self.calls.subscribe().wait_for(|calls| enough(calls)).await);
    }

    /// Ready once `count` requests for `name` have been told that they stand in the queue.
    pub async fn queued(&self, name: &LockName, count: usize) {
        self.until(|calls| {
            let mut ids: Vec<_> =
                calls.iter().filter(|c| c.queued && c.request.name == *name).map(|c| c.request.id).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.len() >= count
        })
        .await;
    }

    async fn record<T>(
        &self,
        operation: Operation,
        request: &Request,
        queued: impl Fn(&T) -> bool + Send,
        future: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let call = self.sent(operation, request);
        let answer = future.await;
        self.answered(call, answer.is_ok(), answer.as_ref().is_ok_and(queued));
        answer
    }

    /// Writes down a call; its number.
    fn sent(&self, operation: Operation, request: &Request) -> usize {
        let call = Call {
            operation,
            request: request.clone(),
            sent: SystemClock.now(),
            answered: None,
            queued: false,
        };
        let mut at = 0;
        self.calls.send_modify(|calls| {
            at = calls.len();
            calls.push(call);
        });
        at
    }

    fn answered(&self, call: usize, is_ok: bool, queued: bool) {
        self.calls.send_modify(|calls| {
            calls[call].answered = Some((SystemClock.now(), is_ok));
            calls[call].queued = queued;
        });
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Recording {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let queued = |standing: &Standing| matches!(standing, Standing::Queued(_)) && request.queues;
        self.record(Operation::Claim, request, queued, self.inner.claim(request)).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.record(Operation::Wait, request, |_| false, self.inner.wait(request)).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        // One call for each request: what is asked about it is how often it is renewed.
        let calls: Vec<usize> = requests.iter().map(|request| self.sent(Operation::Renew, request)).collect();
        let answer = self.inner.keep_alive(requests).await;
        calls.into_iter().for_each(|call| self.answered(call, answer.is_ok(), false));
        answer
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.record(Operation::Release, request, |_| false, self.inner.release(request)).await
    }
}
