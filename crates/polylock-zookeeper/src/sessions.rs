//! The single session of a store: opened when it is needed, and replaced when it has ended.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, join, join_all},
};
use polylock_core::{
    Clock, ConfigError, Error, Executor, HoldAlerts, Moment, Operation, Result, SystemClock, sync::lock,
};
use tokio::net::TcpStream;
use zookeeper_client::{Connector, Error as Failure};

use crate::{
    breaks, cleanup, client,
    config::{AuthScheme, Config},
    error::{Cause, task_failed},
    heartbeat,
    session::Session,
    tls,
};

/// The time reserved, at the end of the connect timeout, for finding out the reason why no server is usable.
const DIAGNOSIS_TIME: Duration = Duration::from_millis(300);

/// Opens sessions, and keeps the current one.
pub(crate) struct Sessions {
    pub(crate) config: Config,
    /// Notified of breaks of holds in any session.
    pub(crate) alerts: Arc<HoldAlerts>,
    connector: Connector,
    /// The servers and the root without secrets, for errors and logs.
    endpoint: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Session>>,
    /// The attempt to open a session that is in progress, shared by all callers.
    opening: Option<Opening>,
}

type Opening = Shared<BoxFuture<'static, Result<Arc<Session>, Cause>>>;

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, ConfigError> {
        let (connector, endpoint) = (connector(&config)?, config.endpoint());
        let (alerts, state) = (Arc::default(), Mutex::default());
        Ok(Arc::new(Self { config, alerts, connector, endpoint, state }))
    }

    /// Returns the current session, or opens a new one if there is none or it has ended.
    ///
    /// # Errors
    /// The reason why no session could be opened. All callers that waited for the same attempt receive the same error.
    ///
    /// # Cancel safety
    /// Cancel-safe: the attempt continues with the next call.
    pub(crate) async fn current(&self) -> Result<Arc<Session>, Cause> {
        let opening = {
            let mut state = self.state();
            if let Some(session) = state.current.as_ref().filter(|session| !session.has_ended()) {
                return Ok(session.clone());
            }
            state.current = None;
            let start = || {
                // It runs in a task of its own, so that a cancelled caller does not leave it half done.
                let opening = open(self.config.clone(), self.connector.clone(), self.alerts.clone());
                let opening = Executor::current().spawn(opening);
                opening.map(|opened| opened.unwrap_or_else(|error| Err(task_failed(&error)))).boxed().shared()
            };
            state.opening.get_or_insert_with(start).clone()
        };
        let opened = opening.clone().await;
        let mut state = self.state();
        if state.opening.as_ref().is_some_and(|other| other.ptr_eq(&opening)) {
            state.opening = None;
            state.current = opened.as_ref().ok().cloned();
        }
        opened
    }

    /// Returns the error of a failed `operation`.
    pub(crate) fn failed(&self, operation: Operation, cause: impl Into<Cause>) -> Error {
        cause.into().at(operation, &self.endpoint)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn connector(config: &Config) -> Result<Connector, ConfigError> {
    let mut connector = zookeeper_client::Client::connector()
        .with_session_timeout(config.session_timeout)
        .with_connection_timeout(config.longest_silence())
        .with_fail_eagerly();
    match (&config.credentials, config.auth) {
        (Some((user, password)), AuthScheme::Digest) => {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        #[cfg(feature = "sasl")]
        (Some((user, password)), AuthScheme::SaslDigestMd5) => {
            use zookeeper_client::SaslOptions;
            connector = connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()));
        }
        _ => {}
    }
    if config.encrypted { tls::encrypt(connector, &config.certificates) } else { Ok(connector) }
}

impl Config {
    /// Opens a session of your own on the same servers: with the user, the password and the certificates of this configuration. Its tasks
    /// run on the caller's runtime.
    ///
    /// # Errors
    /// As [`connect`](crate::connect()).
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing is left behind.
    pub async fn open_client(&self) -> Result<zookeeper_client::Client> {
        let failed = |cause: Cause| cause.at(Operation::Connect, &self.endpoint());
        let servers = self.servers();
        let connecting = connector(self)?.connect(&servers);
        match SystemClock.before(SystemClock.now() + self.connect_timeout, connecting).await {
            Some(connected) => connected.map_err(|error| failed(error.into())),
            None => Err(failed(Failure::Timeout.into())),
        }
    }

    /// Returns the servers as the driver reads them.
    fn servers(&self) -> String {
        let scheme = if self.encrypted { "tcp+tls" } else { "tcp" };
        let servers: Vec<_> = self.servers.iter().map(|server| format!("{scheme}://{server}")).collect();
        servers.join(",")
    }
}

async fn open(config: Config, connector: Connector, alerts: Arc<HoldAlerts>) -> Result<Arc<Session>, Cause> {
    let servers = config.servers();
    let began = SystemClock.now();
    let deadline = began + config.connect_timeout;
    let diagnosis_time = DIAGNOSIS_TIME.min(config.connect_timeout / 3);
    let mut connecting = pin!(client::connect(&config, connector, &servers));
    let connect_deadline = began + (config.connect_timeout - diagnosis_time);
    let (connected, reasons) = match SystemClock.before(connect_deadline, &mut connecting).await {
        Some(connected) => (connected, None),
        // Both run at once, so that the caller does not wait beyond the deadline for the reasons.
        None => {
            let both =
                join(SystemClock.before(deadline, connecting), diagnose_servers(&config, deadline)).await;
            (both.0.unwrap_or(Err(Failure::Timeout)), Some(both.1))
        }
    };
    let client = match connected {
        Ok(client) => client,
        Err(error @ (Failure::AuthFailed | Failure::BadArguments(_))) => return Err(error.into()),
        Err(_) => {
            let reasons = match reasons {
                Some(reasons) => reasons,
                None => diagnose_servers(&config, SystemClock.now() + diagnosis_time).await,
            };
            let took = SystemClock.now().since(began);
            return Err(Cause::Unreachable(format!("no session after {took:.1?} ({reasons})")));
        }
    };
    let timeout = client.session_timeout();
    if timeout < config.session_timeout {
        tracing::warn!(asked = ?config.session_timeout, given = ?timeout, "the servers granted a shorter session timeout: see maxSessionTimeout");
    }
    let mut states = client.state_watcher();
    let session = Arc::new(Session::new(client, breaks::node(&config), began));
    let directories = session.directories.clone();
    let executor = Executor::current();
    executor.spawn(breaks::watch(Arc::downgrade(&session), alerts));
    executor.spawn(heartbeat::run(Arc::downgrade(&session)));
    executor.spawn(cleanup::run(Arc::downgrade(&session), directories.clone()));
    executor.spawn(async move {
        // The last state is a terminated one, whichever side ends the session.
        while !states.changed().await.is_terminated() {}
        directories.clear();
    });
    Ok(session)
}

/// Returns the reason why each server is unusable, as far as it is known by the deadline.
async fn diagnose_servers(config: &Config, deadline: Moment) -> String {
    let reasons = config.servers.iter().map(async |server| {
        let reason = match SystemClock.before(deadline, client::open_stream(server)).await {
            Some(Ok(stream)) => match tls_error(config, server, stream, deadline).await {
                Some(reason) => {
                    let check = "check the names in its certificate, polylock.tls_ca and polylock.tls_cert";
                    format!("no encrypted connection: {reason}: {check}")
                }
                None => "reachable, but opens no session: does the ensemble have a majority, and room for this host (maxClientCnxns)?".to_owned(),
            },
            Some(Err(error)) => error.to_string(),
            None => "no reply".to_owned(),
        };
        format!("{server}: {reason}")
    });
    join_all(reasons).await.join("; ")
}

/// Returns the error of a TLS handshake with a reachable server, if the configuration requires encryption.
async fn tls_error(config: &Config, server: &str, stream: TcpStream, deadline: Moment) -> Option<String> {
    if !config.encrypted {
        return None;
    }
    let stream = stream.into_std().ok()?;
    stream.set_nonblocking(false).ok()?;
    // A timeout of zero would mean no timeout.
    let timeout = deadline.since(SystemClock.now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let (files, server) = (config.certificates.clone(), server.to_owned());
    let handshake = tokio::task::spawn_blocking(move || tls::handshake(&files, &server, stream));
    let result = SystemClock.before(deadline, handshake).await?;
    result.ok()?.err().map(|error| error.to_string())
}
