//! The operations that end or change a hold besides its release, and the list of the locks.

use std::time::Duration;

use polylock_core::{
    BreakOrder, Conversion, Entry as Shown, FencingToken, LockName, LockStatus, LostReason, Request,
    RequestId,
};

use super::{Entry, Executed, QueueServer, State, micros};
use crate::simulation::{plan::Planted, queue_call::Reply};

impl State {
    /// Returns the reason for which a request has no entry.
    pub(super) fn reason(&self, request: RequestId) -> LostReason {
        self.removed.get(&request).cloned().map_or(LostReason::Gone, LostReason::Broken)
    }

    /// Returns the locks with names that begin with `prefix`.
    pub(super) fn list(&self, now: i64, prefix: &str) -> Vec<LockStatus> {
        let locks = self.locks.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        let status = |(name, entries): (&LockName, &Vec<Entry>)| {
            let live = entries.iter().filter(|entry| entry.expires_us > now);
            let (holders, waiters): (Vec<&Entry>, _) = live.partition(|entry| entry.queue_entry.held);
            let [holders, waiters] =
                [holders, waiters].map(|entries| entries.iter().map(|entry| entry.shown(now)).collect());
            LockStatus::new(name.clone(), holders, waiters)
        };
        locks.map(status).filter(|status| !status.holders.is_empty() || !status.waiters.is_empty()).collect()
    }
}

impl Entry {
    fn shown(&self, now: i64) -> Shown {
        let token = self.token.filter(|_| self.queue_entry.held);
        let token = token.and_then(|token| FencingToken::new(token.cast_signed()));
        let age = Duration::from_micros((now - self.since_us).try_into().unwrap_or(0));
        let label = self.request.label.as_ref().map_or("", |label| label.as_str());
        let owner = self.request.owner.clone();
        Shown::new(self.queue_entry.mode, owner, label, token, age, self.left(now))
            .broken(self.notice.clone())
    }
}

impl QueueServer {
    /// Ends a hold at a later time.
    pub(super) fn park(
        &self,
        state: &mut State,
        now: i64,
        (request, token): (&Request, FencingToken),
        (left, refused, expires_us): (Duration, Duration, i64),
    ) -> Reply {
        if now > expires_us {
            return Reply::Expired;
        }
        let entries = state.locks.entry(request.name.clone()).or_default();
        let is_target = |entry: &&mut Entry| {
            entry.request.id == request.id && entry.has_token(token) && entry.expires_us > now
        };
        let Some(entry) = entries.iter_mut().find(is_target) else {
            return Reply::Lost(state.reason(request.id));
        };
        if let Some(notice) = &entry.notice {
            return Reply::Lost(LostReason::Broken(notice.clone()));
        }
        if !entry.is_parked {
            (entry.is_parked, entry.expires_us) = (true, now + micros(left));
        }
        state.executed.push((now, request.id, Executed::Park));
        if !refused.is_zero() {
            state.released.insert(request.id, now + micros(refused));
        }
        Reply::Ended
    }

    /// Changes the mode of a hold to a weaker one.
    pub(super) fn convert(
        &self,
        state: &mut State,
        now: i64,
        request: &Request,
        conversion: Conversion,
    ) -> Reply {
        let number = state.draw();
        let entries = state.locks.entry(request.name.clone()).or_default();
        let is_own = |entry: &&mut Entry| entry.request.id == request.id && entry.expires_us > now;
        let token = |number: u64| FencingToken::new(number.cast_signed());
        let reply = match entries.iter_mut().find(is_own) {
            Some(Entry { notice: Some(notice), .. }) => Reply::Lost(LostReason::Broken(notice.clone())),
            Some(entry) if !entry.queue_entry.held || entry.is_parked => Reply::Lost(LostReason::Gone),
            Some(entry) if !entry.has_token(conversion.from) => {
                entry.token.and_then(token).map_or(Reply::Lost(LostReason::Gone), Reply::OtherToken)
            }
            Some(entry) => {
                (entry.token, entry.queue_entry.mode) = (Some(number), conversion.to);
                token(number).map_or(Reply::Lost(LostReason::Gone), Reply::Converted)
            }
            None => Reply::Lost(state.reason(request.id)),
        };
        state.settle(&request.name, now, None, self.has(Planted::RevivedHold));
        reply
    }

    /// Marks or removes holds.
    pub(super) fn break_holds(
        &self,
        state: &mut State,
        now: i64,
        name: &LockName,
        order: &BreakOrder,
        expires_us: i64,
    ) -> Reply {
        if now > expires_us {
            return Reply::Expired;
        }
        let entries = state.locks.entry(name.clone()).or_default();
        let (mut broken, mut removed) = (Vec::new(), Vec::new());
        for entry in entries.iter_mut().filter(|entry| entry.queue_entry.held && entry.expires_us > now) {
            let token = entry.token.and_then(|token| FencingToken::new(token.cast_signed()));
            if order.is_target(token) || self.has(Planted::UntargetedBreak) {
                if order.force {
                    removed.push(entry.request.id);
                    // A copy of its claim that is still on its way is refused.
                    state.released.insert(entry.request.id, entry.expires_us);
                } else if !entry.is_parked {
                    entry.notice.get_or_insert_with(|| order.notice.clone());
                }
                broken.push(entry.shown(now));
            }
        }
        entries.retain(|entry| !removed.contains(&entry.request.id));
        state.removed.extend(removed.into_iter().map(|request| (request, order.notice.clone())));
        state.settle(name, now, None, self.has(Planted::RevivedHold));
        Reply::Locks(vec![LockStatus::new(name.clone(), broken, Vec::new())])
    }
}
