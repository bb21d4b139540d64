//! The faults of servers.

use super::{Ensemble, SYNC_LIMIT};
use crate::simulation::zookeeper::connection::ToClient;

impl Ensemble {
    /// Stops a server.
    pub fn pause(&self, number: usize) {
        let now = self.time.now();
        self.lock().members[number].paused_since.get_or_insert(now);
    }

    /// Continues a server.
    pub fn resume(&self, number: usize) {
        let mut state = self.lock();
        let state = &mut *state;
        let since = state.members[number].paused_since.take();
        let arrived = std::mem::take(&mut state.members[number].arrived);
        // Its timers and its connections are served in any order.
        if state.random.bool() {
            self.expire(state);
        }
        for (connection, message) in arrived {
            self.handle(state, &connection, message);
        }
        let was_dropped = since.is_some_and(|since| self.time.now() - since > SYNC_LIMIT * self.tick);
        if was_dropped && state.members.len() > 1 {
            self.leave(state, number);
        }
        self.deliver_held(state, number);
        self.work_off(state);
        // A leader's pings are overdue.
        if state.leader.member == number && state.leads() {
            self.ping(state);
        }
    }

    /// Cuts a server off from the other servers.
    pub fn cut(&self, number: usize) {
        let mut state = self.lock();
        let late = state.random.u64(1..=SYNC_LIMIT + 1);
        let member = &mut state.members[number];
        member.cut_since.get_or_insert(self.time.now());
        member.unnoticed = (SYNC_LIMIT + if member.is_leader { late } else { 0 }) * self.tick;
    }

    /// Ends the effect of [`cut`](Self::cut).
    pub fn heal(&self, number: usize) {
        let mut state = self.lock();
        let state = &mut *state;
        state.members[number].cut_since = None;
        self.expire(state);
        if number == state.leader.member {
            (0..state.members.len()).for_each(|number| self.deliver_held(state, number));
        } else {
            self.deliver_held(state, number);
        }
        self.work_off(state);
    }

    /// Ends a server.
    pub fn crash(&self, number: usize) {
        let mut state = self.lock();
        let refuses = state.random.bool();
        let member = &mut state.members[number];
        (member.is_up, member.refuses, member.term) = (false, refuses, None);
        member.arrived.clear();
        member.held = <_>::default();
        member.touched.clear();
        for served in std::mem::take(&mut member.clients).into_values() {
            if refuses {
                served.connection.reply(ToClient::Closed);
            }
        }
    }

    /// Starts a server again.
    pub fn restart(&self, number: usize) {
        self.lock().members[number].is_up = true;
    }
}
