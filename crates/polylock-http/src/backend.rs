//! The store: its operations on the servers.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Fault, KeepAlive, LostReason, Operation, PerRuntime, Release,
    Request, Result, Unavailable, Wake,
};
use polylock_protocol::{
    InvalidBody, KeepAliveBody, KeepAliveReply, ReleaseReply, RequestBody, WakeReply, paths,
};

use crate::{NAME, config::Config, servers::Servers};

/// The time limit of a wait: more than the longest one of a server.
const WAIT: Duration = Duration::from_secs(40);

/// The locks of the store behind the servers.
#[derive(Debug)]
pub(crate) struct HttpBackend {
    pub(crate) capabilities: Capabilities,
    pub(crate) servers: Servers,
    config: Config,
    callers: PerRuntime<Self>,
}

/// Returns the error for a reply with an invalid value.
pub(crate) fn invalid(operation: Operation, error: InvalidBody) -> polylock_core::Error {
    Unavailable::new(NAME, operation, Fault::Permanent, error).into()
}

impl HttpBackend {
    pub(crate) fn new(capabilities: Capabilities, servers: Servers, config: Config) -> Self {
        Self { capabilities, servers, config, callers: PerRuntime::default() }
    }

    /// Returns the time limit of an operation without which this lease ends.
    pub(crate) fn limit(&self, ttl: Duration) -> Duration {
        self.servers.operation_timeout.min(ttl / 3)
    }
}

#[async_trait]
impl Backend for HttpBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        let open = || {
            let (capabilities, config) = (self.capabilities.clone(), self.config.clone());
            let opening = self.servers.for_caller(config.clone());
            async { Ok(Self::new(capabilities, opening.await?, config)) }
        };
        // It uses the server of the store itself, also after a change.
        self.callers.get(|_| true, open).map(|caller| caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let outcome = self.servers.claim(request).await?.outcome();
        let outcome = outcome.map_err(|error| invalid(Operation::Claim, error))?;
        Ok(outcome.unwrap_or_else(|| unreachable!("late claims are repeated")))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let body = RequestBody::from(request);
        let reply: WakeReply = self.servers.send_once(Operation::Wait, paths::WAIT, &body, WAIT).await?;
        reply.try_into().map_err(|error| invalid(Operation::Wait, error))
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let shortest = requests.iter().map(|request| request.queue_lease()).min();
        let limit = self.limit(shortest.unwrap_or(Request::MAX_QUEUE_LEASE));
        let body = KeepAliveBody { requests: requests.iter().map(|request| (&**request).into()).collect() };
        let reply: KeepAliveReply =
            self.servers.send(Operation::Renew, paths::KEEP_ALIVE, &body, limit).await?;
        let outcomes = reply.outcomes.iter().map(TryInto::try_into).collect::<Result<_, _>>();
        outcomes.map_err(|error| invalid(Operation::Renew, error))
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let (body, limit) = (RequestBody::from(request), self.limit(request.ttl));
        let (servers, operation) = (&self.servers, Operation::Release);
        // Another process may have extended the hold of such a request since. Any other release is wanted, however late it arrives.
        let reply: Result<(ReleaseReply, bool)> = match request.outlives_process {
            true => servers.send_in_time(operation, paths::RELEASE, &body, limit).await,
            false => servers.send_counted(operation, paths::RELEASE, &body, limit).await,
        };
        // After the release: a claim that is carried out now has nothing to wait for. If it has failed, another process may hold the lock by the
        // same request.
        if reply.is_ok() || !request.outlives_process {
            self.servers.release_unanswered(request);
        }
        let (reply, is_repeated) = reply?;
        let outcome = (&reply).try_into().map_err(|error| invalid(Operation::Release, error))?;
        Ok(match outcome {
            // An earlier attempt, on another server, may have removed the entry.
            Release::Lost(LostReason::Gone) if is_repeated => Release::Released,
            outcome => outcome,
        })
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.servers.unanswered())
    }
}
