//! Two servers that are one store behind one address, as behind a virtual IP address or a load balancer. In a switch-over they change their
//! roles: the standby becomes the primary, and the former primary becomes its standby.
//!
//! A switch-over loses no write that the primary has acknowledged, so a store that keeps its promises on one server keeps them here.

mod mariadb;
mod postgres;
mod redis;
mod roles;

use std::{
    fmt,
    ops::Deref,
    ptr,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use polylock_testkit::Missing;

use self::roles::Roles;
use super::private::{PrivateServer, Server};
use crate::proxy::{End, Flow, Proxy};

/// Starts a PostgreSQL server with `settings` and a synchronous standby.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn postgres(settings: &[&str]) -> Result<Pair, Missing> {
    Ok(Pair::of(postgres::Postgres, postgres::start(settings)?))
}

/// Starts a MariaDB server with `settings` and a replica. Its URL has a user without the right to write to a server that is read-only.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn mariadb(settings: &[&str]) -> Result<Pair, Missing> {
    Ok(Pair::of(mariadb::MariaDb, mariadb::start(settings)?))
}

/// Starts a Redis server with `settings` and a replica.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn redis(settings: &[&str]) -> Result<Pair, Missing> {
    Ok(Pair::of(redis::Redis, redis::start(settings)?))
}

/// The way in which the primary changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchOver {
    /// What clients see until the next primary accepts writes.
    pub gap: Gap,
    /// True if the former primary is killed, if the store can lose it without losing writes. Otherwise it ends its role in an orderly way.
    pub kills: bool,
}

/// What clients see between two primaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// A server that accepts no writes.
    ReadOnly,
    /// Nobody replies, and no end of a connection is reported.
    Silence,
}

impl fmt::Display for SwitchOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.kills { "is killed" } else { "is stopped" };
        let gap = if self.gap == Gap::ReadOnly { "no server accepts writes" } else { "no server replies" };
        write!(f, "the primary {way}, and {gap}")
    }
}

/// Two servers of one store. They are killed when this is dropped.
#[derive(Debug)]
pub struct Pair {
    server: Server,
    /// The address of the primary for all clients.
    address: Proxy,
    members: [PrivateServer; 2],
    /// True if the second one is the primary.
    is_switched: AtomicBool,
    roles: Box<dyn Roles>,
}

impl Deref for Pair {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Pair {
    fn of(roles: impl Roles + 'static, members: [PrivateServer; 2]) -> Self {
        let address = Proxy::to(members[0].port());
        let server = Server::at(address.url(&roles.url(&members[0])));
        Self { server, address, members, is_switched: AtomicBool::new(false), roles: Box::new(roles) }
    }

    /// Returns both servers.
    #[must_use]
    pub const fn members(&self) -> &[PrivateServer] {
        &self.members
    }

    /// Returns the port of the address of 127.0.0.1 that leads to the primary.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.address().port()
    }

    /// Makes the standby the primary. Calls `wait` while no server accepts writes, and returns when one does.
    /// [`rejoin`](Self::rejoin) must follow.
    ///
    /// # Panics
    /// If a server refuses.
    pub fn switch_over(&self, how: SwitchOver, wait: &dyn Fn()) {
        let [primary, standby] = self.by_role();
        if how.gap == Gap::Silence {
            self.address.set_both(Flow::Drop);
            // A server that is about to end would wait for the first bytes of new connections.
            self.redirect_to(standby);
            self.roles.resign(primary, standby, how.kills);
            wait();
            self.roles.promote(standby);
            self.address.set_both(Flow::Pass);
            self.address.cut(End::Reset);
        } else {
            let read_only = self.roles.resign(primary, standby, how.kills);
            self.redirect_to(read_only);
            self.address.cut(End::Reset);
            wait();
            self.roles.promote(standby);
            // Connections with a standby outlive its promotion.
            if !ptr::eq(read_only, standby) {
                self.redirect_to(standby);
                self.address.cut(End::Reset);
            }
        }
        self.is_switched.fetch_xor(true, SeqCst);
    }

    /// Makes the former primary the standby, and returns when it has all writes.
    ///
    /// # Panics
    /// If a server refuses.
    pub fn rejoin(&self) {
        let [primary, former] = self.by_role();
        self.roles.follow(former, primary);
    }

    /// Returns the primary and the other one.
    fn by_role(&self) -> [&PrivateServer; 2] {
        let [first, second] = &self.members;
        if self.is_switched.load(SeqCst) { [second, first] } else { [first, second] }
    }

    /// Leads new connections to this server.
    fn redirect_to(&self, server: &PrivateServer) {
        self.address.redirect_to(([127, 0, 0, 1], server.port()).into());
    }
}
