//! Independent Redis servers: the nodes of a Redlock.

use std::{io, net::SocketAddr};

use polylock_testkit::Missing;
use tokio::net::TcpSocket;

use super::{Failure, Private, Server, redis};

/// Starts `count` of them with `settings` of their `redis.conf`.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If one does not start, with its log.
pub fn start(count: usize, settings: &[&str]) -> Result<Vec<Private>, Missing> {
    (0..count).map(|_| redis::start(settings)).collect()
}

/// The URL of a Redlock with these nodes. User, database and keys are those of the first.
#[must_use]
pub fn url<'a>(nodes: impl IntoIterator<Item = &'a str>) -> String {
    let parts: Vec<_> = nodes.into_iter().map(apart).collect();
    let hosts: Vec<&str> = parts.iter().map(|(_, hosts, _)| *hosts).collect();
    let (user, _, rest) = parts.first().copied().unwrap_or_default();
    format!("redlock://{user}{}{rest}", hosts.join(","))
}

/// The servers that are named in the URL of a Redlock, or of another store with several.
#[must_use]
pub fn nodes(url: &str) -> Vec<Server> {
    let (user, hosts, rest) = apart(url);
    hosts.split(',').map(|host| Server { url: format!("redis://{user}{host}{rest}"), log: None }).collect()
}

/// What stands before the hosts of a URL, they, and what stands behind.
pub(super) fn apart(url: &str) -> (&str, &str, &str) {
    let url = url.split_once("://").map_or(url, |(_, url)| url);
    // A password may hold anything that ends a host.
    let (user, url) = url.split_at(url.rfind('@').map_or(0, |at| at + 1));
    let (hosts, rest) = url.split_at(url.find(['/', '?']).unwrap_or(url.len()));
    (user, hosts, rest)
}

/// A node that is down: whoever connects is refused, and nobody else gets its port as long as this lives.
#[derive(Debug)]
pub struct Dead {
    address: SocketAddr,
    /// Bound, and never listening.
    _socket: TcpSocket,
}

impl Dead {
    /// At a port of 127.0.0.1 that was free.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new() -> Self {
        let bound = || -> io::Result<Self> {
            let socket = TcpSocket::new_v4()?;
            socket.bind(([127, 0, 0, 1], 0).into())?;
            Ok(Self { address: socket.local_addr()?, _socket: socket })
        };
        bound().unwrap_or_else(|error| panic!("no free port: {error}"))
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

impl Default for Dead {
    fn default() -> Self {
        Self::new()
    }
}

/// Five that run, as the tests of a process share them.
pub(super) type Five = (Vec<Server>, Vec<Private>);

/// Those of the URL in the environment, if there is one; else new ones.
pub(super) fn five(url: Option<&str>) -> Result<Five, Failure> {
    let Some(url) = url else {
        let private: Result<Vec<Private>, Failure> =
            (0..5).map(|_| super::begin_durable(&redis::REDIS)).collect();
        let private = private?;
        return Ok((private.iter().map(|private| private.server.clone()).collect(), private));
    };
    let servers = nodes(url);
    if servers.len() < 5 {
        let why = format!("POLYLOCK_TEST_REDLOCK_URL names {} nodes, and the tests need five", servers.len());
        return Err(Failure::Broken(why));
    }
    Ok((servers, Vec::new()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_dead_node_refuses_and_keeps_its_port() {
        let dead = Dead::new();
        let refused = TcpStream::connect(dead.address).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(dead.address).expect_err("it is taken");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert_ne!(dead.address, Dead::new().address);
    }

    #[test]
    fn a_url_and_its_nodes_are_the_same() {
        for (url, nodes_of) in [
            ("redlock://a:1,b:2", ["redis://a:1", "redis://b:2"]),
            (
                "redlock://me:s/e?c@ret@a:1,b:2/3?k=v",
                ["redis://me:s/e?c@ret@a:1/3?k=v", "redis://me:s/e?c@ret@b:2/3?k=v"],
            ),
            ("redlock://a,[::1]:2/", ["redis://a/", "redis://[::1]:2/"]),
        ] {
            let nodes = nodes(url);
            assert_eq!(nodes.iter().map(Server::url).collect::<Vec<_>>(), nodes_of);
            assert_eq!(super::url(nodes.iter().map(Server::url)), url);
        }
    }
}
