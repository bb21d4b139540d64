//! The conversion of a hold to another mode, from the side of its holder.
//!
//! Each conversion names the token of the hold before it, and the hold has a new one after it. So a copy that arrives late changes nothing:
//! 1. The holder of EX downgrades to PR; the reply is lost, and the repetition is carried out.
//! 2. The holder upgrades to EX again, and works alone.
//! 3. The first copy arrives. It names the token before step 1, so the store leaves the hold in EX.
//!
//! From the moment at which a downgrade is sent, the hold counts as held in the weaker mode, whatever the reply. An upgrade that ends
//! without success is undone by a conversion to the mode before: until the store has confirmed that, the hold may exclude more than its
//! holder knows, which is safe. So is an upgrade whose caller drops it before it learns of its success.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::{
    backoff::Backoff,
    hold::Hold,
    shared_hold::{SharedHold, wait_at_most},
};
use crate::{
    ConfigError, Conversion, ConversionOutcome, Convert, Error, Mode, Moment, NotAcquired, Operation, Result,
    io, time_limit,
};

/// The longest pause before a conversion that waits is repeated, before the jitter. At most one holder of a lock is first in line for a
/// conversion, so this limits the load of the lock, however many requests it has.
const LONGEST_PAUSE: Duration = Duration::from_millis(125);

/// The time that the caller of an upgrade that has failed waits until the store has confirmed its end.
const UNDO_LIMIT: Duration = Duration::from_millis(500);

impl SharedHold {
    /// Converts the hold to the weaker mode `to`.
    pub(crate) async fn downgrade(&self, to: Mode) -> Result<()> {
        let conversions = self.conversions()?;
        self.converting(async move {
            let _turn = conversions.hold.conversion.clone().lock_owned().await;
            let held = conversions.hold.mode();
            if !held.covers(to) || !conversions.is_possible(held, to) {
                return Err(conversions.refused("downgraded", to));
            }
            if held == to {
                return conversions.hold.check_held();
            }
            // The store may grant the lock to others before the reply arrives.
            conversions.hold.set_mode(to);
            conversions.attempt(held, to, false).await.map(drop)
        })
        .await
    }

    /// Converts the hold to the stronger mode `to`, and waits at most `wait` for the other holders that are in its way.
    pub(crate) async fn upgrade(&self, to: Mode, wait: Option<Duration>) -> Result<()> {
        let conversions = self.conversions()?;
        // Dropping the caller's future drops the sender; with `()`, it has received the success.
        let (caller, mut dropped) = oneshot::channel::<()>();
        let (succeeded, mut success) = oneshot::channel();
        let mut upgrading = pin!(self.converting(async move {
            let hold = conversions.hold.clone();
            let wait = UpgradeWait::begin(hold.context.now(), wait);
            let turn = tokio::select! {
                biased;
                _ = &mut dropped => return Err(conversions.not_converted(NotAcquired::Busy)),
                turn = hold.conversion.clone().lock_owned() => turn,
                () = hold.context.until(wait.until) => return Err(conversions.timed_out(wait)),
            };
            let held = hold.mode();
            if !to.covers(held) || !conversions.is_possible(held, to) {
                return Err(conversions.refused("upgraded", to));
            }
            if held == to {
                return hold.check_held();
            }
            let outcome = tokio::select! {
                biased;
                _ = &mut dropped => Err(conversions.not_converted(NotAcquired::Busy)),
                outcome = conversions.upgrade(held, to, wait) => outcome,
            };
            if outcome.is_err() {
                let undo = async move {
                    conversions.attempt(held, held, false).await?;
                    drop(turn);
                    Ok(())
                };
                // A failure is harmless: the mark ends with the hold.
                wait_at_most(hold, Some(UNDO_LIMIT), undo.boxed()).await.ok();
                return outcome;
            }
            succeeded.send(()).ok();
            let is_received = tokio::select! {
                biased;
                received = dropped => received.is_ok(),
                () = hold.phase_when(|phase| (!phase.is_held()).then_some(())) => true,
            };
            if !is_received {
                conversions.take_back(held, to).await.ok();
            }
            Ok(())
        }));
        tokio::select! {
            biased;
            Ok(()) = &mut success => {}
            // Without a message of success, there was nothing to convert, or it has failed.
            ended = &mut upgrading => return ended,
        }
        caller.send(()).ok();
        // Its end needs no reply of the store. It is not waited for, because this future could be dropped before.
        drop(upgrading.now_or_never());
        Ok(())
    }

    fn conversions(&self) -> Result<Conversions> {
        let context = &self.hold().context;
        match context.store.convert.clone() {
            Some(store) => Ok(Conversions { hold: self.hold().clone(), store }),
            None => {
                Err(Error::Unsupported { backend: context.backend(), capability: "conversions of a hold" })
            }
        }
    }

    /// Runs `work` on the I/O thread of the store; it continues if the caller drops it.
    async fn converting(&self, work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
        let failed = |cause| Err(io::failed(self.hold().context.backend(), Operation::Convert, cause));
        self.foreground().begin(Operation::Convert, work)?.await.unwrap_or_else(failed)
    }
}

/// The wait of an upgrade: for another conversion of the hold, and then for the other holders.
#[derive(Debug, Clone, Copy)]
struct UpgradeWait {
    began: Moment,
    until: Moment,
    is_try: bool,
}

impl UpgradeWait {
    fn begin(now: Moment, wait: Option<Duration>) -> Self {
        let until = wait.map_or(Moment::NEVER, |wait| now + wait);
        Self { began: now, until, is_try: wait == Some(Duration::ZERO) }
    }
}

/// The conversions of one hold, one at a time.
struct Conversions {
    hold: Arc<Hold>,
    store: Arc<dyn Convert>,
}

impl Conversions {
    fn is_possible(&self, held: Mode, to: Mode) -> bool {
        Conversion::new(self.hold.token(), held, to).is_possible(self.hold.request.mode)
    }

    /// Converts an upgraded hold back to `held`. NL can't be reached again: CR excludes the least after it.
    async fn take_back(&self, held: Mode, upgraded: Mode) -> Result<()> {
        let to = held.max(Mode::ConcurrentRead);
        self.hold.set_mode(to);
        self.attempt(upgraded, to, false).await.map(drop)
    }

    /// Repeats the conversion until no other holder is in its way.
    async fn upgrade(&self, held: Mode, to: Mode, wait: UpgradeWait) -> Result<()> {
        let context = &self.hold.context;
        let UpgradeWait { until, is_try, .. } = wait;
        let mut backoff = Backoff::up_to(LONGEST_PAUSE);
        loop {
            let attempt = tokio::select! {
                biased;
                outcome = self.attempt(held, to, !is_try) => outcome?,
                // A try waits for its reply.
                () = context.until(until), if !is_try => Attempt::Blocked(Duration::ZERO),
            };
            let Attempt::Blocked(recheck_after) = attempt else { return Ok(()) };
            let now = context.now();
            if is_try || now >= until {
                return Err(self.timed_out(wait));
            }
            tokio::select! {
                biased;
                () = self.hold.phase_when(|phase| (!phase.is_held()).then_some(())) => {}
                () = context.until(until.min(now + backoff.next().min(recheck_after))) => {}
            }
        }
    }

    /// Sends the conversion, and repeats it while the store is unavailable and the hold lasts.
    async fn attempt(&self, held: Mode, to: Mode, waits: bool) -> Result<Attempt> {
        let context = &self.hold.context;
        loop {
            let conversion = Conversion::new(self.hold.token(), held, to).waits(waits);
            let send = || {
                let (store, request) = (self.store.clone(), self.hold.request.clone());
                // Another process may extend the hold after its deadline here.
                let limit = context.system_time(self.hold.deadline().unwrap_or_default());
                let sent = context.start(Operation::Convert, Some(&request.clone().name), |_| {
                    time_limit::until(limit, async move { store.convert(&request, &conversion).await })
                });
                async move {
                    let mut sent = sent;
                    sent.reply().await
                }
            };
            self.hold.has_unknown_token.store(true, Ordering::Relaxed);
            let outcome = self.hold.retry_while_held(Operation::Convert, send).await?;
            self.hold.has_unknown_token.store(false, Ordering::Relaxed);
            match outcome {
                ConversionOutcome::Converted(token) => {
                    self.hold.converted(to, token);
                    return Ok(Attempt::Converted);
                }
                ConversionOutcome::Blocked { recheck_after } => return Ok(Attempt::Blocked(recheck_after)),
                ConversionOutcome::OtherToken(token) => self.hold.converted(held, token),
                ConversionOutcome::Deadlock => {
                    let cycle = format!(
                        "another holder waits until this hold in {held} is released or downgraded, and an upgrade to {to} would wait \
                         for that holder: release the lock, and acquire it in {to}"
                    );
                    return Err(Error::Deadlock { name: self.hold.name().clone(), cycle });
                }
                ConversionOutcome::Lost(reason) => {
                    self.hold.lose(reason);
                    self.hold.check_held()?;
                }
            }
        }
    }

    fn timed_out(&self, wait: UpgradeWait) -> Error {
        let waited = self.hold.context.now().since(wait.began);
        self.not_converted(if wait.is_try { NotAcquired::Busy } else { NotAcquired::TimedOut { waited } })
    }

    fn not_converted(&self, reason: NotAcquired) -> Error {
        Error::NotAcquired { name: self.hold.name().clone(), reason }
    }

    fn refused(&self, change: &str, to: Mode) -> Error {
        let held = self.hold.mode();
        let problem = match to {
            Mode::Null => "a hold in NL excludes nobody: release the lock".to_owned(),
            to => format!("a hold in {held} can't be {change} to {to}: see the table of modes"),
        };
        ConfigError::new("mode", problem).into()
    }
}

/// The outcome of an attempt.
enum Attempt {
    Converted,
    /// Another holder is in the way, for this time at most.
    Blocked(Duration),
}
