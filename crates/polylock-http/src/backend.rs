//! The store: its operations on the servers.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Fault, KeepAlive, LostReason, Operation, PerRuntime, Release,
    Request, Result, Unavailable, Wake,
};
use polylock_protocol::{InvalidBody, KeepAliveBody, KeepAliveReply, ReleaseReply, RequestBody, paths};

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
        // The claim that follows moves the request to the server in use. Its keep-alives go there, too, and a server forgets a waiter without them.
        let Some(reply) = self.servers.wait(request, WAIT).await? else { return Ok(Wake::Stale) };
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
        self.servers.forget_queued(request);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use axum::{Router, http::Uri, response::IntoResponse};
    use http::StatusCode;
    use polylock_core::{LockName, Mode, memory, sync::lock};
    use polylock_protocol::{CLOCK, ServerTime, StoreBody};
    use tokio::net::TcpListener;

    use super::*;

    /// A lock service that queues every request, and replies that its store is unavailable once it fails.
    #[derive(Debug, Default)]
    struct Queueing {
        fails: AtomicBool,
        /// The paths of the operations so far.
        received: Mutex<Vec<String>>,
    }

    impl Queueing {
        /// Starts it, and returns its address.
        async fn start(self: &Arc<Self>) -> String {
            let service = self.clone();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let routes = Router::new().fallback(async move |uri: Uri| service.reply(uri.path()));
            tokio::spawn(async move { axum::serve(listener, routes).await });
            address
        }

        fn reply(&self, path: &str) -> impl IntoResponse + use<> {
            lock(&self.received).push(path.to_owned());
            let status = match self.fails.load(Ordering::SeqCst) {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::OK,
            };
            (status, [(CLOCK, ServerTime { server: 1, us: 1 }.to_string())], reply(path))
        }

        /// Returns the paths since the last call.
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut lock(&self.received))
        }
    }

    fn reply(path: &str) -> String {
        let store = StoreBody {
            store: "memory".to_owned(),
            capabilities: memory::connect().backend.capabilities().into(),
            inspects: false,
            alerts: false,
            raises: false,
            keeps_records: false,
            converts: false,
            parks: false,
        };
        match path {
            paths::STORE => serde_json::to_string(&store).unwrap(),
            paths::CLAIM => {
                r#"{"outcome":"queued","ahead":1,"recheck_after_us":500000,"may_be_granted_late":false}"#
                    .into()
            }
            paths::KEEP_ALIVE => r#"{"outcomes":[{"state":"queued"}]}"#.into(),
            paths::WAIT => r#"{"wake":"stale"}"#.into(),
            _ => r#"{"state":"released"}"#.into(),
        }
    }

    /// A server knows a waiter if it has queued its last claim. A wait elsewhere would miss the grant, until the next keep-alive.
    #[tokio::test]
    async fn a_request_waits_on_the_server_that_has_queued_it() {
        let [one, other] = [(); 2].map(|()| Arc::<Queueing>::default());
        let url = format!("polylock+http://{},{}", one.start().await, other.start().await);
        let config = Config::new(&url).unwrap();
        let servers = Servers::connect(&config).await.unwrap();
        let backend = HttpBackend::new(memory::connect().backend.capabilities().clone(), servers, config);
        let ttl = Duration::from_secs(30);
        let request = Arc::new(Request::new(LockName::new("n").unwrap(), Mode::Exclusive, ttl));
        backend.claim(&request).await.unwrap();
        assert_eq!(one.take(), [paths::STORE, paths::CLAIM]);
        // A keep-alive of another hold moves the client to the other server.
        one.fails.store(true, Ordering::SeqCst);
        backend.keep_alive(std::slice::from_ref(&request)).await.unwrap();
        assert_eq!(other.take(), [paths::KEEP_ALIVE]);
        assert_eq!(backend.wait(&request).await.unwrap(), Wake::Stale);
        assert_eq!(other.take(), [""; 0], "it does not know the request");
        backend.claim(&request).await.unwrap();
        backend.wait(&request).await.unwrap();
        assert_eq!(other.take(), [paths::STORE, paths::CLAIM, paths::WAIT]);
        backend.release(&request).await.unwrap();
        assert_eq!(backend.servers.queued(), 0);
    }
}
