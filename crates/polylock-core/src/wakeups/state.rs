//! The waiters of a registry, and the requests that they wait for.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::handover::WaiterId;
use crate::{Grant, LockName, Mode, Request, RequestId};

/// The maps are ordered, so that a simulation sends and wakes in the same order when it is repeated.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) waiters: BTreeMap<RequestId, Registration>,
    /// Reverse index: waiters by the request that they are blocked on.
    pub(super) followers: BTreeMap<RequestId, Vec<RequestId>>,
    /// The waiters by ticket, in order of their registration.
    pub(super) tickets: BTreeMap<u64, RequestId>,
    /// The last ticket assigned.
    last: u64,
}

#[derive(Debug)]
pub(super) struct Registration {
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) queue_lease: Duration,
    /// The request that it waits for.
    pub(super) watches: Option<RequestId>,
    ticket: u64,
    /// The queue position that the last claim returned.
    pub(super) position: Option<u64>,
    /// The last grant, and the queue position that it was issued for.
    pub(super) granted: Option<(u64, Grant)>,
    /// `Some` from the first notification or the first wait, so that a claim that is granted at once allocates none.
    pub(super) notify: Option<Arc<Notify>>,
}

impl Registration {
    pub(super) fn notify(&mut self) {
        self.notify.get_or_insert_default().notify_one();
    }
}

impl State {
    /// Returns the ticket, and true if there is a queue position from an earlier claim.
    pub(super) fn register(&mut self, request: &Request) -> (u64, bool) {
        let Self { waiters, tickets, last, .. } = self;
        let waiter = waiters.entry(request.id).or_insert_with(|| {
            *last += 1;
            tickets.insert(*last, request.id);
            Registration {
                name: request.name.clone(),
                mode: request.mode,
                queue_lease: request.queue_lease(),
                watches: None,
                ticket: *last,
                position: None,
                granted: None,
                notify: None,
            }
        });
        (waiter.ticket, waiter.position.is_some())
    }

    pub(super) fn find(&mut self, waiter: WaiterId) -> Option<&mut Registration> {
        let request = match waiter {
            WaiterId::Ticket(ticket) => *self.tickets.get(&ticket)?,
            WaiterId::Request(request) => request,
        };
        self.waiters.get_mut(&request)
    }

    pub(super) fn watch(&mut self, request: RequestId, watched: RequestId) {
        let Some(waiter) = self.waiters.get_mut(&request) else { return };
        match waiter.watches.replace(watched) {
            Some(before) if before == watched => return,
            Some(before) => self.unlink(request, before),
            None => {}
        }
        self.followers.entry(watched).or_default().push(request);
    }

    pub(super) fn remove(&mut self, request: RequestId) {
        if let Some(waiter) = self.waiters.remove(&request) {
            waiter.notify.iter().for_each(|notify| notify.notify_one());
            self.tickets.remove(&waiter.ticket);
            if let Some(watched) = waiter.watches {
                self.unlink(request, watched);
            }
        }
    }

    fn unlink(&mut self, request: RequestId, watched: RequestId) {
        if let Some(followers) = self.followers.get_mut(&watched) {
            followers.retain(|waiter| *waiter != request);
            if followers.is_empty() {
                self.followers.remove(&watched);
            }
        }
    }
}
