//! The packets by which a session is known to last; see [`proof`](crate::proof).

use std::sync::Weak;

use polylock_core::{Clock, SystemClock};

use crate::{
    error::{Outcome, outcome},
    session::{Session, pause},
};

/// Sends a `sync` at each interval until the session has ended.
///
/// It does not keep the session open.
pub(crate) async fn run(session: Weak<Session>) {
    while let Some(current) = session.upgrade() {
        let (sent, interval) = (SystemClock.now(), current.lifetime.interval());
        match current.sync().await {
            Ok(()) => {
                drop(current);
                SystemClock.sleep_until(sent + interval).await;
            }
            Err(error) if outcome(&error) == Outcome::Ended => return,
            Err(_) => {
                drop(current);
                pause().await;
            }
        }
    }
}
