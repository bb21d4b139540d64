//! Several ZooKeepers that are one: what a majority of them has acknowledged, all have.

use std::{ops::Deref, sync::Arc, time::Duration};

use futures_util::future::join_all;
use polylock_testkit::Missing;

use super::{super as servers, ZooKeeper, ask};
use crate::clock;
use servers::{Failure, Private, START, Server};

/// Starts one of `count` members, each with `settings` as of [`start`](super::start). A leader that does not answer is given
/// up by the others after three seconds: `syncLimit` ticks.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with the log of a member.
pub fn ensemble(count: usize, settings: &[&str]) -> Result<Ensemble, Missing> {
    assemble(count, settings).map_err(servers::missing)
}

/// An ensemble that belongs to one test. Its [`url`](Server::url) names all members.
#[derive(Debug)]
pub struct Ensemble {
    server: Server,
    members: Vec<Private>,
}

impl Deref for Ensemble {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Ensemble {
    /// Each of them, to be hurt alone.
    ///
    /// A member only answers while it belongs to a majority. So its [`restart`](Private::restart) needs one, itself included:
    /// where too few others run, restart [all](Self::restart).
    #[must_use]
    pub fn members(&self) -> &[Private] {
        &self.members
    }

    /// The index of the leader, as soon as exactly one member says that it is that. One that is frozen or dead says nothing.
    ///
    /// # Panics
    /// If there is none for a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        let limit = clock::now() + START;
        let only_one = async {
            loop {
                let leads = async |member: &Private| {
                    let answer = ask(member.url(), None, "srvr").await;
                    answer.is_ok_and(|answer| answer.lines().any(|line| line == "Mode: leader"))
                };
                let lead = join_all(self.members.iter().map(leads)).await;
                let mut leaders = lead.iter().enumerate().filter(|(_, leads)| **leads);
                match (leaders.next(), leaders.next()) {
                    (Some((leader, _)), None) => return Ok(leader),
                    _ if clock::now() > limit => return Err(format!("no leader within {START:?}")),
                    _ => clock::pause(Duration::from_millis(5)).await,
                }
            }
        };
        servers::blocking(only_one).and_then(|leader| leader).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Kills all members that still run, starts all with their ports and their data, and waits until they answer.
    ///
    /// # Panics
    /// If they do not, with a log.
    pub fn restart(&self) {
        self.members.iter().for_each(Private::kill);
        for member in &self.members {
            member.keeper().start(&member.command);
        }
        for member in &self.members {
            member.is_back(&member.keeper());
        }
    }
}

/// The same as [`ensemble`].
pub(in super::super) fn assemble(count: usize, settings: &[&str]) -> Result<Ensemble, Failure> {
    loop {
        let members = launch(count, settings)?;
        match members.iter().try_for_each(Private::begun) {
            Ok(()) => {
                let hosts: Vec<String> =
                    members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
                let server = Server { url: format!("zookeeper://{}", hosts.join(",")), log: None };
                return Ok(Ensemble { server, members });
            }
            Err(_) if members.iter().any(Private::has_no_port) => (),
            Err(broken) => return Err(broken),
        }
    }
}

/// Starts the members. None of them answers before there are enough.
fn launch(count: usize, settings: &[&str]) -> Result<Vec<Private>, Failure> {
    // For the clients, for the leader's followers, for elections.
    let ports: Vec<u16> = (0..count).flat_map(|_| servers::ports().take(3)).collect();
    let (ports, _) = ports.as_chunks::<3>();
    if ports.len() < count {
        return Err(servers::no_port());
    }
    let members = ports
        .iter()
        .zip(1..)
        .map(|([_, follow, elect], member)| format!("server.{member}=127.0.0.1:{follow}:{elect}"));
    let members: Vec<String> = members.collect();
    let settings: Vec<&str> = settings.iter().copied().chain(members.iter().map(String::as_str)).collect();
    let launched = ports.iter().zip(1..).map(|([port, ..], member)| {
        servers::launch(Arc::new(ZooKeeper { member: Some(member), ..ZooKeeper::of(&settings) }), *port)
    });
    launched.collect()
}
