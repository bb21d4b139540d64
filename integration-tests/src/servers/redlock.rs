//! Independent Redis servers: the nodes of a Redlock.

use std::{io, net::SocketAddr};

use polylock_testkit::Missing;
use tokio::net::TcpSocket;

use super::{
    private::{Failure, PrivateServer, Server},
    redis,
};

/// Starts `count` of them with `settings` of their `redis.conf`.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn start(count: usize, settings: &[&str]) -> Result<Vec<PrivateServer>, Missing> {
    (0..count).map(|_| redis::start(settings)).collect()
}

/// Returns the URL of a Redlock with these nodes, with the user, database and keys of the first.
#[must_use]
pub fn url<'a>(nodes: impl IntoIterator<Item = &'a str>) -> String {
    let parts: Vec<_> = nodes.into_iter().map(split_url).collect();
    let hosts: Vec<&str> = parts.iter().map(|(_, hosts, _)| *hosts).collect();
    let (user, _, rest) = parts.first().copied().unwrap_or_default();
    format!("redlock://{user}{}{rest}", hosts.join(","))
}

/// Returns the servers in the URL of a Redlock, or of another store with several servers.
#[must_use]
pub fn nodes(url: &str) -> Vec<Server> {
    let (user, hosts, rest) = split_url(url);
    hosts.split(',').map(|host| Server::at(format!("redis://{user}{host}{rest}"))).collect()
}

/// Splits a URL into the part before the hosts, the hosts, and the rest.
pub(super) fn split_url(url: &str) -> (&str, &str, &str) {
    let url = url.split_once("://").map_or(url, |(_, url)| url);
    // A password may contain the characters that end a host.
    let (user, url) = url.split_at(url.rfind('@').map_or(0, |at| at + 1));
    let (hosts, rest) = url.split_at(url.find(['/', '?']).unwrap_or(url.len()));
    (user, hosts, rest)
}

/// A node that is down: connections are refused. The port stays reserved until this is dropped.
#[derive(Debug)]
pub struct Dead {
    address: SocketAddr,
    /// Bound, but not listening.
    _socket: TcpSocket,
}

impl Dead {
    /// Reserves a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn new() -> Self {
        let bound = || -> io::Result<Self> {
            let socket = TcpSocket::new_v4()?;
            socket.bind(([127, 0, 0, 1], 0).into())?;
            Ok(Self { address: socket.local_addr()?, _socket: socket })
        };
        bound().unwrap_or_else(|error| panic!("no free port: {error}"))
    }

    /// Returns its URL.
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

/// Five shared nodes, and their owners.
pub(super) type SharedNodes = (Vec<Server>, Vec<PrivateServer>);

/// Returns the nodes of the URL in the environment, or else starts new ones.
pub(super) fn shared(url: Option<&str>) -> Result<SharedNodes, Failure> {
    let Some(url) = url else {
        let private: Result<Vec<PrivateServer>, Failure> =
            (0..5).map(|_| redis::start_durable(&redis::REDIS)).collect();
        let private = private?;
        return Ok((private.iter().map(|private| Server::clone(private)).collect(), private));
    };
    let servers = nodes(url);
    if servers.len() < 5 {
        let why = format!("POLYLOCK_TEST_REDLOCK_URL names {} nodes; name at least five", servers.len());
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
        let refused = TcpStream::connect(dead.address).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(dead.address).expect_err("the port is reserved");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert_ne!(dead.address, Dead::new().address);
    }

    #[test]
    fn a_url_is_composed_of_its_nodes() {
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
