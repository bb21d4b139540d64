//! `serve`: the lock service in front of the store.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use polylock::{Clock, ConfigError, SystemClock, read_url};
use polylock_server::{Access, Service, Tls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;

use crate::{
    args::{Global, Serve},
    exit::{Failure, INTERNAL, UNAVAILABLE, USAGE},
    metrics,
    output::Output,
    signals::{self, Signals},
    store,
};

/// The time between two looks at the file of the callers.
const LOOK: Duration = Duration::from_secs(2);

/// Serves clients until a signal ends polylock.
pub(crate) async fn serve(global: &Global, args: &Serve, output: &Output) -> Result<u8, Failure> {
    let is_secure = args.access.is_some() && args.tls_cert.is_some();
    if !args.listen.ip().is_loopback() && !is_secure && !args.allow_insecure {
        let problem = format!(
            "{} can be reached from other machines: add --access and --tls-cert, or listen on 127.0.0.1 or [::1] behind a proxy that \
             authenticates",
            args.listen
        );
        return Err(Failure::new(USAGE, problem));
    }
    let (access, tls) = (access(args)?, tls(args)?);
    let chosen = store::choose(global, output)?;
    let mut signals = Signals::listen()
        .map_err(|error| Failure::new(INTERNAL, format!("can't listen for signals: {error}")))?;
    let (_, config) = read_url(&chosen.config.into_url()?)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let store = config.open().await?;
    let recorder = match args.metrics_listen {
        Some(address) => {
            metrics::serve(address)?;
            metrics::recorder(store.backend.capabilities().backend)
        }
        None => None,
    };
    let mut service = Service::measured(store, recorder)?.access(access);
    if let Some(tls) = tls {
        service = service.tls(tls);
    }
    // A pipe can be read only once: another read would wait for another writer.
    if let Some(file) = args.access.clone().filter(|file| file.is_file()) {
        tokio::spawn(follow(file, service.callers(), *output));
    }
    allow_all_files();
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        let hint = "; choose another port with --listen";
        Failure::new(UNAVAILABLE, format!("can't listen on {}: {error}{hint}", args.listen))
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::new(INTERNAL, format!("can't find the address: {error}")))?;
    output.detail(format!("serving {}", chosen.display_name));
    output.data(&format!("{scheme}://{address}\n"))?;
    let mut signal = None;
    let ended = async { signal = Some(signals.next_termination().await) };
    polylock_server::serve(listener, service, ended).await;
    Ok(signal.map_or(0, |signal| signals::exit_code(signal.as_raw())))
}

fn access(args: &Serve) -> Result<Access, Failure> {
    let Some(file) = &args.access else {
        return Ok(if args.listen.ip().is_loopback() {
            Access::open()
        } else {
            Access::open_to_all_machines()
        });
    };
    read(file).and_then(|text| parse(file, &text)).map_err(Into::into)
}

fn read(file: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(file).map_err(|error| unusable(file, &error))
}

fn parse(file: &Path, text: &str) -> Result<Access, ConfigError> {
    Access::parse(text).map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, problem: &dyn fmt::Display) -> ConfigError {
    ConfigError::new("--access", format!("can't use {}: {problem}", file.display()))
}

/// Reads the file again and again, and replaces the callers when it has changed. A file that can't be used changes nothing.
async fn follow(file: PathBuf, callers: Arc<Access>, output: Output) {
    // As the service has read it, or a later one: then they are replaced by the same.
    let mut present = None;
    loop {
        SystemClock.sleep_until(SystemClock.now() + LOOK).await;
        let found = if file.is_file() { read(&file) } else { Err(unusable(&file, &"it is not a file")) };
        if present.as_ref() == Some(&found) {
            continue;
        }
        match found.clone().and_then(|text| parse(&file, &text)) {
            Ok(access) => callers.replace(access),
            Err(error) => output.warning(format!("{error}; the callers stay as they are")),
        }
        present = Some(found);
    }
}

fn tls(args: &Serve) -> Result<Option<Tls>, Failure> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    Ok(Some(Tls::read(certificate, key, args.tls_client_ca.as_deref())?))
}

/// Allows as many open files as the system does: each connection is one.
fn allow_all_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::debug!(error = &error as &dyn std::error::Error, "the limit of open files stays");
    }
}
