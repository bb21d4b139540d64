//! A server and its clients: the requests of each are answered in order, reads by the server alone.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use polylock_zookeeper::{
    simulation::Request,
    zookeeper_client::{Error, EventType},
};

use super::{Ensemble, Member, Pending, Served, State, Verdict, What};
use crate::simulation::{
    plan::Planted,
    zookeeper::{
        connection::{Answer, Connection, Open, ToClient, ToServer, changes_nothing},
        tree::Tree,
    },
};

impl Ensemble {
    pub(super) fn handle(&self, state: &mut State, connection: &Arc<Connection>, message: ToServer) {
        let member = &mut state.members[connection.server];
        if !member.is_up {
            if member.refuses {
                connection.reply(ToClient::Closed);
            }
            return;
        }
        if member.paused_since.is_some() {
            return member.arrived.push((connection.clone(), message));
        }
        match message {
            ToServer::Open(open) => {
                if member.term.is_none() || open.zxid > member.tree.zxid {
                    return connection.reply(ToClient::Closed);
                }
                if open.session.is_some() {
                    member.close_connections(open.session);
                }
                let served = Served {
                    connection: connection.clone(),
                    session: None,
                    queue: VecDeque::new(),
                    watches: BTreeSet::new(),
                };
                member.clients.insert(connection.number, served);
                self.forward(state, connection, What::Open(open));
            }
            ToServer::Close => drop(member.clients.remove(&connection.number)),
            message => {
                let Some(session) = member.clients.get(&connection.number).and_then(|served| served.session)
                else {
                    return connection.reply(ToClient::Closed);
                };
                self.touch(state, connection.server, session);
                match message {
                    ToServer::Request(number, request) => self.request(state, connection, number, request),
                    ToServer::CloseSession => self.forward(state, connection, What::Close),
                    _ => connection.reply(ToClient::Pong),
                }
            }
        }
    }

    fn touch(&self, state: &mut State, number: usize, session: i64) {
        if state.leader.member == number && state.has_active_leader() {
            let now = state.members[number].clock.now();
            state.leader.sessions.touch(session, now);
        } else {
            state.members[number].touched.insert(session);
        }
    }

    fn request(&self, state: &mut State, connection: &Arc<Connection>, number: u64, request: Request) {
        let proves_nothing = self.planted == Some(Planted::ZookeeperLocalProof) && changes_nothing(&request);
        let (pending, what) = match request {
            read if proves_nothing => (Pending::Read(read), None),
            Request::Sync => (Pending::AtLeader, Some(What::Sync(number))),
            Request::Change(change) => (Pending::AtLeader, Some(What::Change(number, vec![change], false))),
            Request::Transaction(changes) => (Pending::AtLeader, Some(What::Change(number, changes, true))),
            read => (Pending::Read(read), None),
        };
        let member = &mut state.members[connection.server];
        let Some(served) = member.clients.get_mut(&connection.number) else { return };
        served.queue.push_back((number, pending));
        match what {
            Some(what) => self.forward(state, connection, what),
            None => member.reply_in_order(connection.number),
        }
    }

    pub(super) fn answer(&self, state: &mut State, number: usize, connection: u64, verdict: &Verdict) {
        let member = &mut state.members[number];
        let Some(served) = member.clients.get_mut(&connection) else { return };
        match verdict {
            Verdict::Opened(Some(session), open) => {
                served.session = Some(*session);
                served.connection.reply(ToClient::Opened(*session));
                member.watch_again(connection, open);
            }
            Verdict::Opened(None, _) => served.connection.reply(ToClient::Expired),
            // The leader and the client disagree on the connection of the session, so the client has to open another one (ZOOKEEPER-710).
            Verdict::Reply(_, Err(Error::SessionMoved)) => {
                served.connection.reply(ToClient::Closed);
                member.clients.remove(&connection);
            }
            Verdict::Reply(request, outcome) => {
                if let Some((_, pending)) = served.queue.iter_mut().find(|(other, _)| other == request) {
                    *pending = Pending::Answered(outcome.clone());
                }
                member.reply_in_order(connection);
            }
        }
    }
}

impl Member {
    pub(super) const fn is_running(&self) -> bool {
        self.is_up && self.paused_since.is_none()
    }

    pub(super) const fn is_reachable(&self) -> bool {
        self.is_running() && self.cut_since.is_none()
    }

    /// Notifies the clients that watch `path`, once.
    pub(super) fn notify(&mut self, event: EventType, path: &str) {
        for served in self.clients.values_mut() {
            let existed = served.watches.remove(&(path.to_owned(), true));
            if served.watches.remove(&(path.to_owned(), false)) || existed {
                served.connection.reply(ToClient::Event(event, path.to_owned()));
            }
        }
    }

    pub(super) fn end_session(&mut self, session: i64) {
        self.touched.remove(&session);
        self.close_connections(Some(session));
    }

    /// Closes the connections of a session.
    fn close_connections(&mut self, session: Option<i64>) {
        self.clients.retain(|_, served| {
            let is_other = served.session != session;
            if !is_other {
                served.connection.reply(ToClient::Closed);
            }
            is_other
        });
    }

    /// Sets the watches of a session that has continued, or reports the changes that it has missed.
    fn watch_again(&mut self, connection: u64, open: &Open) {
        let Some(served) = self.clients.get_mut(&connection) else { return };
        for (path, existed) in &open.watches {
            let missed = match (self.tree.state(path), existed) {
                (None, true) => Some(EventType::NodeDeleted),
                (Some(_), false) => Some(EventType::NodeCreated),
                (Some(stat), true) if stat.mzxid > open.zxid => Some(EventType::NodeDataChanged),
                _ => None,
            };
            match missed {
                Some(event) => served.connection.reply(ToClient::Event(event, path.clone())),
                None => drop(served.watches.insert((path.clone(), *existed))),
            }
        }
    }

    /// Replies to the requests at the begin of the queue of a client.
    fn reply_in_order(&mut self, connection: u64) {
        let Some(served) = self.clients.get_mut(&connection) else { return };
        while let Some((number, pending)) = served.queue.pop_front() {
            let answer = match pending {
                Pending::AtLeader => return served.queue.push_front((number, pending)),
                Pending::Answered(answer) => answer,
                Pending::Read(request) => read(&self.tree, &request, &mut served.watches),
            };
            served.connection.reply(ToClient::Reply(number, self.tree.zxid, answer));
        }
    }
}

/// Carries out a read.
fn read(tree: &Tree, request: &Request, watched: &mut BTreeSet<(String, bool)>) -> Result<Answer, Error> {
    match request {
        Request::Check { path, watches } => {
            let stat = tree.state(path);
            if *watches {
                watched.insert((path.clone(), stat.is_some()));
            }
            Ok(Answer::State(stat))
        }
        Request::Read { path, watches } => {
            let (data, stat) = tree.data(path)?;
            if *watches {
                watched.insert((path.clone(), true));
            }
            Ok(Answer::Data(data, stat))
        }
        Request::ReadAll(paths) => Ok(Answer::All(paths.iter().map(|path| tree.data(path)).collect())),
        Request::List(path) => tree.children(path).map(Answer::Children),
        Request::Sync | Request::Change(_) | Request::Transaction(_) => Ok(Answer::Done),
    }
}
