//! `serve`: the lock service in front of the store.

use std::net::SocketAddr;

use polylock::read_url;
use polylock_server::Service;
use tokio::net::TcpListener;

use crate::{
    args::Global,
    exit::{Failure, INTERNAL, UNAVAILABLE, USAGE},
    output::Output,
    signals::{self, Signals},
    store,
};

/// Serves clients until a signal ends polylock.
pub(crate) async fn serve(global: &Global, listen: SocketAddr, output: &Output) -> Result<u8, Failure> {
    if !listen.ip().is_loopback() {
        let problem = format!(
            "{listen} can be reached from other machines, and the service has no authentication yet: listen on 127.0.0.1 or [::1], \
             behind a proxy that authenticates"
        );
        return Err(Failure::new(USAGE, problem));
    }
    let mut signals = Signals::listen()
        .map_err(|error| Failure::new(INTERNAL, format!("can't listen for signals: {error}")))?;
    let chosen = store::choose(global, output)?;
    let (_, config) = read_url(&chosen.config.into_url()?)?;
    let service = Service::new(config.open().await?)?;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        let hint = "; choose another port with --listen";
        Failure::new(UNAVAILABLE, format!("can't listen on {listen}: {error}{hint}"))
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::new(INTERNAL, format!("can't find the address: {error}")))?;
    output.detail(format!("serving {}", chosen.display_name));
    output.data(&format!("http://{address}\n"))?;
    let mut signal = None;
    let ended = async { signal = Some(signals.next_termination().await) };
    polylock_server::serve(listener, service, ended).await;
    Ok(signal.map_or(0, |signal| signals::exit_code(signal.as_raw())))
}
