//! The events of a hold for its holder: renewals, a low slack, the loss.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::sync::broadcast::{self, error::RecvError};

use super::phase::{Phase, PhaseCell};
use crate::{LostReason, Moment};

/// The number of events that are kept for a slow reader.
const KEPT: usize = 16;

/// An event of a hold, from [`Guard::events`](crate::Guard::events).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardEvent {
    /// The store has acknowledged a renewal.
    Renewed {
        /// The new deadline.
        deadline: Moment,
        /// The slack: the time that was left before the deadline. It shrinks long before a lock is lost.
        slack: Duration,
    },
    /// Less than a third of the lease is left, and the renewal that was due is not acknowledged. It comes once for each lease.
    SlackLow {
        /// The time left before the deadline.
        left: Duration,
    },
    /// This many older events were dropped, because the reader is slow.
    Missed(u64),
    /// The lock is lost. No event follows.
    Lost(LostReason),
}

/// The events of one hold, in order, from [`Guard::events`](crate::Guard::events).
///
/// The events of a slow reader are kept in bounded memory: the last 16. The loss is never dropped. It is returned before older events.
#[derive(Debug)]
pub struct GuardEvents {
    events: broadcast::Receiver<GuardEvent>,
    phase: Arc<PhaseCell>,
    has_ended: bool,
}

impl GuardEvents {
    /// Returns the next event; `None` when the holder has released the lock, and after [`GuardEvent::Lost`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. No event is lost with it.
    pub async fn next(&mut self) -> Option<GuardEvent> {
        if self.has_ended {
            return None;
        }
        let end = self.phase.wait_until(|phase| match phase {
            Phase::Held { .. } => None,
            Phase::Left => Some(None),
            Phase::Lost(reason) => Some(Some(GuardEvent::Lost(reason.clone()))),
        });
        let event = async {
            match self.events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(count)) => GuardEvent::Missed(count),
                // The end of the hold comes before that of the channel.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            end = end => {
                self.has_ended = true;
                end
            }
            event = event => Some(event),
        }
    }

    /// Returns the events as a stream, which ends with the hold.
    pub fn into_stream(self) -> impl Stream<Item = GuardEvent> + Send {
        stream::unfold(self, async |mut events| {
            let event = events.next().await?;
            Some((event, events))
        })
    }
}

/// The sender of a hold's events. Without a reader it takes no memory.
#[derive(Debug, Default)]
pub(super) struct EventSender(OnceLock<broadcast::Sender<GuardEvent>>);

impl EventSender {
    /// Returns the events from now on.
    pub(super) fn subscribe(&self, phase: &Arc<PhaseCell>) -> GuardEvents {
        let sender = self.0.get_or_init(|| broadcast::Sender::new(KEPT));
        GuardEvents { events: sender.subscribe(), phase: phase.clone(), has_ended: false }
    }

    pub(super) fn send(&self, event: GuardEvent) {
        if let Some(sender) = self.0.get() {
            // An error means that all readers have gone.
            sender.send(event).ok();
        }
    }
}
