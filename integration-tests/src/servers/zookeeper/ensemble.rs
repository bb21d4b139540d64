//! A ZooKeeper ensemble: a write that a majority has acknowledged is committed.

use std::{ops::Deref, sync::Arc, time::Duration};

use futures_util::future::join_all;
use polylock_testkit::Missing;

use super::{ZooKeeper, ask};
use crate::{
    clock,
    proxy::Proxy,
    servers::private::{self, Failure, PrivateServer, START_TIMEOUT, Server},
};

/// Starts an ensemble of `count` members, each with `settings` as in [`start`](super::start). The others replace a leader that does not
/// reply for three seconds: `syncLimit` ticks.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with the log of a member.
pub fn ensemble(count: usize, settings: &[&str]) -> Result<Ensemble, Missing> {
    assemble(count, settings).map_err(private::missing)
}

/// An ensemble that belongs to one test. Its [`url`](Server::url) names all members.
#[derive(Debug)]
pub struct Ensemble {
    server: Server,
    members: Vec<PrivateServer>,
}

impl Deref for Ensemble {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Ensemble {
    /// Returns the members.
    ///
    /// A member replies only while it belongs to a majority. So its [`restart`](PrivateServer::restart) needs one, itself included:
    /// if too few others run, restart [all](Self::restart).
    #[must_use]
    pub fn members(&self) -> &[PrivateServer] {
        &self.members
    }

    /// Waits until exactly one member reports to be the leader, and returns its index. A frozen or dead member does not report.
    ///
    /// # Panics
    /// If there is none for a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        let limit = clock::now() + START_TIMEOUT;
        let only_one = async {
            loop {
                let leads = async |member: &PrivateServer| {
                    let answer = ask(member.url(), None, "srvr").await;
                    answer.is_ok_and(|answer| answer.lines().any(|line| line == "Mode: leader"))
                };
                let lead = join_all(self.members.iter().map(leads)).await;
                let mut leaders = lead.iter().enumerate().filter(|(_, leads)| **leads);
                match (leaders.next(), leaders.next()) {
                    (Some((leader, _)), None) => return Ok(leader),
                    _ if clock::now() > limit => return Err(format!("no leader within {START_TIMEOUT:?}")),
                    _ => clock::pause(Duration::from_millis(5)).await,
                }
            }
        };
        private::blocking(only_one).and_then(|leader| leader).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Kills all members that run, starts all with their ports and data, and waits until they reply.
    ///
    /// # Panics
    /// If one does not reply, with its log.
    pub fn restart(&self) {
        self.members.iter().for_each(PrivateServer::kill);
        for member in &self.members {
            member.keeper().start(&member.command);
        }
        for member in &self.members {
            member.wait_for_restart(&member.keeper());
        }
    }
}

/// Starts an ensemble of three members with `settings`, and an observer, which is the last of [its members](Ensemble::members). The
/// observer receives the writes through one of these proxies: each leads to one of the others.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with the log of a member.
pub fn ensemble_with_observer(settings: &[&str]) -> Result<(Ensemble, [Proxy; 3]), Missing> {
    // They are redirected when the ports of the members are known.
    let proxies = [1; 3].map(Proxy::to);
    let assembled = assemble_each(4, settings, |member, number, [_, follow, elect]| match (member, number) {
        (4, 4) => format!("server.4=127.0.0.1:{follow}:{elect}:observer\npeerType=observer"),
        (_, 4) => format!("server.4=127.0.0.1:{follow}:{elect}:observer"),
        (4, _) => {
            let proxy = &proxies[number - 1];
            proxy.redirect_to(([127, 0, 0, 1], *follow).into());
            format!("server.{number}=127.0.0.1:{}:{elect}", proxy.address().port())
        }
        _ => format!("server.{number}=127.0.0.1:{follow}:{elect}"),
    });
    Ok((assembled.map_err(private::missing)?, proxies))
}

/// The same as [`ensemble`].
pub(in super::super) fn assemble(count: usize, settings: &[&str]) -> Result<Ensemble, Failure> {
    assemble_each(count, settings, |_, number, [_, follow, elect]| {
        format!("server.{number}=127.0.0.1:{follow}:{elect}")
    })
}

/// The ports of a member: for clients, for the leader's followers, for elections.
type Ports = [u16; 3];

/// Starts an ensemble. `line` returns the setting by which one member knows another one, by their numbers from 1 and the ports of the latter.
fn assemble_each(
    count: usize,
    settings: &[&str],
    line: impl Fn(usize, usize, &Ports) -> String,
) -> Result<Ensemble, Failure> {
    loop {
        let members = launch(count, settings, &line)?;
        match members.iter().try_for_each(PrivateServer::wait_for_start) {
            Ok(()) => {
                let hosts: Vec<String> =
                    members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
                let server = Server::at(format!("zookeeper://{}", hosts.join(",")));
                return Ok(Ensemble { server, members });
            }
            Err(_) if members.iter().any(PrivateServer::is_port_taken) => (),
            Err(broken) => return Err(broken),
        }
    }
}

/// Starts the members. None of them replies before there are enough.
fn launch(
    count: usize,
    settings: &[&str],
    line: impl Fn(usize, usize, &Ports) -> String,
) -> Result<Vec<PrivateServer>, Failure> {
    let ports: Vec<u16> = (0..count).flat_map(|_| private::ports().take(3)).collect();
    let (ports, _) = ports.as_chunks::<3>();
    if ports.len() < count {
        return Err(private::no_free_port());
    }
    let launched = ports.iter().zip(1..).map(|([port, ..], member)| {
        let lines: Vec<String> =
            ports.iter().zip(1..).map(|(ports, number)| line(member, number, ports)).collect();
        let settings: Vec<&str> = settings.iter().copied().chain(lines.iter().map(String::as_str)).collect();
        private::launch(Arc::new(ZooKeeper { member: Some(member), ..ZooKeeper::of(&settings) }), *port)
    });
    launched.collect()
}
