//! The command `polylock` with two stores that break a promise, as `polylock check` must report: `faulty-exclusion:/path/to/locks.db` grants
//! a lock that is held, and `faulty-tokens:/path/to/locks.db` repeats a token.

use std::{process::ExitCode, sync::Arc};

use async_trait::async_trait;
use polylock::{
    Capabilities, Clock, FencingToken, Result, Store, StoreConfig, StoreUrl, SystemClock,
    core::{Backend, ClaimOutcome, Grant, KeepAlive, Release, Request, Wake},
    read_url,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Exclusion,
    Tokens,
}

struct Config {
    sqlite: Arc<dyn StoreConfig>,
    broken: Broken,
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        let store = self.sqlite.open().await?;
        let inner = store.backend.clone();
        Ok(Store { backend: Arc::new(Faulty { inner, broken: self.broken }), ..store })
    }

    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        let sqlite = self.sqlite.in_namespace(name)?;
        Some(Arc::new(Self { sqlite, broken: self.broken }))
    }

    async fn delete_namespaces(&self, names: &[String]) -> Result<()> {
        self.sqlite.delete_namespaces(names).await
    }
}

#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Backend>,
    broken: Broken,
}

#[async_trait]
impl Backend for Faulty {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let now = i64::try_from(SystemClock.now().as_nanos()).ok().and_then(FencingToken::new);
        Ok(match (self.inner.claim(request).await?, self.broken, now, FencingToken::new(7)) {
            (ClaimOutcome::Queued(_), Broken::Exclusion, Some(token), _) => {
                ClaimOutcome::Granted(Grant::new(token, request.ttl))
            }
            (ClaimOutcome::Granted(grant), Broken::Tokens, _, Some(token)) => {
                ClaimOutcome::Granted(Grant::new(token, grant.lease))
            }
            (outcome, ..) => outcome,
        })
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.inner.release(request).await
    }
}

fn main() -> ExitCode {
    for (scheme, broken) in [("faulty-exclusion", Broken::Exclusion), ("faulty-tokens", Broken::Tokens)] {
        let registered = polylock::register(scheme, move |url, _| {
            let (_, sqlite) = read_url(&StoreUrl::parse(&format!("sqlite:{}", url.rest()))?)?;
            Ok(Config { sqlite, broken })
        });
        registered.unwrap_or_else(|error| unreachable!("{error}"));
    }
    polylock_cli::main()
}
