//! The limits of an acquisition in several steps, such as that of several locks: one wait and one outage for all of them.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    acquisition::{FIRST_REPLY, LONGEST_DELAY, LONGEST_PAUSE},
    backoff::Backoff,
    context::StoreContext,
    failing::FailingSince,
    hold::Hold,
};
use crate::{Error, Moment, NotAcquired, Options, Progress, Result, io};

/// The wait for a step after the time for all steps has passed: enough for the reply of the store. Zero would be a try.
const SHORTEST_WAIT: Duration = Duration::from_nanos(1);

/// The limits of an acquisition in several steps. It begins with this value.
#[derive(Debug)]
pub(crate) struct Steps {
    context: Arc<StoreContext>,
    began: Moment,
    /// The wait for all steps; `None` without a limit, and for a try.
    wait: Option<Duration>,
    /// The longest outage; zero if a step fails with its first error.
    outage: Duration,
    failing: FailingSince,
}

impl Steps {
    pub(crate) fn begin(context: &Arc<StoreContext>, options: &Options) -> Self {
        let is_try = options.wait == Some(Duration::ZERO);
        Self {
            context: context.clone(),
            began: context.now(),
            wait: options.wait.filter(|_| !is_try),
            outage: options.outage_of(is_try),
            failing: FailingSince::default(),
        }
    }

    /// Returns the rest of the wait, for the next step.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(|wait| (self.began + wait).since(self.context.now()).max(SHORTEST_WAIT))
    }

    pub(crate) const fn failing(&self) -> &FailingSince {
        &self.failing
    }

    /// Returns the time by which the store must reply to a message that is sent now.
    pub(crate) fn reply_by(&self) -> Moment {
        self.wait.map_or(Moment::NEVER, |_| self.give_up().max(self.context.now() + FIRST_REPLY))
    }

    /// Returns the error of a step as that of the acquisition: it reports the time for which all steps have waited.
    pub(crate) fn failed(&self, error: Error) -> Error {
        match error {
            Error::NotAcquired { name, reason: NotAcquired::TimedOut { .. } } => {
                let waited = self.context.now().since(self.began);
                Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited } }
            }
            error => error,
        }
    }

    /// Repeats a step after temporary errors, while `hold` lasts if there is one.
    pub(crate) async fn retry<T, F: Future<Output = Result<T>>>(
        &self,
        hold: Option<&Hold>,
        progress: Option<&Progress>,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        let (context, give_up) = (&self.context, self.give_up());
        let mut backoff = Backoff::up_to(LONGEST_PAUSE);
        loop {
            hold.map_or(Ok(()), Hold::check_held)?;
            let sent = context.now();
            let error = match attempt().await {
                Ok(output) => {
                    self.failing.replied();
                    progress.inspect(|progress| progress.available());
                    return Ok(output);
                }
                Err(error) => error,
            };
            let (since, delay) = (self.failing.failed(&error, sent), error.retry_after());
            let is_within_outage = delay.is_some() || context.now().since(since) < self.outage;
            let pause = delay.map_or_else(|| backoff.next(), |delay| delay.min(LONGEST_DELAY));
            let again = context.now() + pause;
            if !error.is_temporary() || self.outage.is_zero() || !is_within_outage || again >= give_up {
                return Err(error);
            }
            if let (Some(progress), None) = (progress, delay) {
                progress.failing(since, give_up.min(since + self.outage), &error);
            }
            let context = context.clone();
            // The runtime of the caller may have no timers.
            io::run(context.backend(), async move { context.until(again).await }).await?;
        }
    }

    fn give_up(&self) -> Moment {
        self.wait.map_or(Moment::NEVER, |wait| self.began + wait)
    }
}
