//! The service in a simulated process, for tests of the real code in virtual time. This module is unstable: it is no part of the interface that
//! versions promise.

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use polylock_core::{Clock, Executor, SystemClock, simulation::Stream};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    access::Peer,
    serve::{SWEEP, requests, routes},
    service::Service,
};

/// Serves the clients on `connections` as [`serve`](crate::serve) does, until their sender is dropped. The time limits of connections are those of the
/// runtime's clock, so there are none here.
///
/// # Cancel safety
/// Dropping the future ends no connection.
pub async fn serve(service: Service, mut connections: UnboundedReceiver<Box<dyn Stream>>) {
    let routes = routes(&service);
    let mut next_sweep = SystemClock.now() + SWEEP;
    loop {
        match SystemClock.before(next_sweep, connections.recv()).await {
            Some(Some(stream)) => {
                let mut builder = http1::Builder::new();
                // It would be the time of the real clock.
                builder.auto_date_header(false);
                let requests = requests(Peer(None), routes.clone());
                let connection = builder.serve_connection(TokioIo::new(stream), requests);
                // An error is the end of the connection.
                drop(Executor::current().spawn(async move { connection.await.ok() }));
            }
            Some(None) => return,
            None => {
                let now = SystemClock.now();
                service.inner().drop_waiters(now);
                next_sweep = now + SWEEP;
            }
        }
    }
}
