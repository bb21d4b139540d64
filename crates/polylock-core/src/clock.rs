//! The clock of deadlines, which keeps counting while the machine is suspended.

use std::{
    fmt,
    future::Future,
    ops::{Add, Sub},
    pin::Pin,
    sync::LazyLock,
    time::Duration,
};

use crate::process;

/// An instant on a [`Clock`]: nanoseconds since some origin, such as the machine's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment(u64);

impl Moment {
    /// An instant that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the instant this many nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Returns the instant later by `time`, or [`NEVER`](Self::NEVER) on overflow.
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    /// Returns the instant earlier by `time`, but never before the clock's origin.
    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A future that a [`Clock`] returns.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time for core.
///
/// A clock never goes back, and keeps counting while the machine is suspended: otherwise a laptop that was suspended would treat a
/// lease as valid that has long expired.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Moment;

    /// Returns a future that completes at `at`. It is polled in the context of the store's I/O thread.
    fn sleep_until(&self, at: Moment) -> Sleep;
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux, `std::time::Instant` elsewhere.
///
/// Timers count only the time that the machine is awake, so a sleep reads the clock again every second. After a suspend, an expired
/// deadline is noticed within a second at most, and at once by everything that reads the clock
/// ([`Guard::is_held`](crate::Guard::is_held), [`Guard::run`](crate::Guard::run)).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Returns the output of `future`, or `None` if `deadline` comes first; then `future` is dropped.
    ///
    /// It must be polled in the context of a tokio runtime with timers.
    pub async fn before<F: Future>(self, deadline: Moment, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep_until(deadline) => None,
        }
    }

    /// Returns an identity of the clock, which two processes have in common if a [`Moment`] of one is a `Moment` of the other: on Linux, that of
    /// the boot of the machine and of the time namespace. `None` if there is no such clock. It has no spaces.
    ///
    /// Copies of a running virtual machine have the same identity and clocks that differ.
    #[must_use]
    pub fn shared_id() -> Option<&'static str> {
        static ID: LazyLock<Option<String>> = LazyLock::new(shared_id);
        if process::is_simulated() { None } else { ID.as_deref() }
    }
}

/// The longest time that a timer runs before the clock is read again, because the machine may have been suspended.
const RECHECK: Duration = Duration::from_secs(1);

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(process::nanos().unwrap_or_else(nanos))
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where a deadline becomes a timer")]
    fn sleep_until(&self, at: Moment) -> Sleep {
        if let Some(sleep) = process::sleep_until(at.0) {
            return Box::pin(sleep);
        }
        Box::pin(async move {
            loop {
                let left = at.since(SystemClock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(RECHECK)).await;
            }
        })
    }
}

#[cfg(target_os = "linux")]
fn nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (secs, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    secs.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0))
}

#[cfg(target_os = "linux")]
fn shared_id() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // An old kernel has no time namespaces.
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    let words = [boot.trim(), &*namespace.to_string_lossy()].concat();
    (!boot.trim().is_empty() && !words.contains(char::is_whitespace)).then_some(words)
}

#[cfg(not(target_os = "linux"))]
fn shared_id() -> Option<String> {
    None
}

#[cfg(not(target_os = "linux"))]
fn nanos() -> u64 {
    use std::time::Instant;
    #[expect(clippy::disallowed_methods, reason = "the best clock std has on this system")]
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let now = SystemClock.now();
        assert_eq!(now + Duration::MAX, Moment::NEVER);
        assert_eq!(Moment::from_nanos(5) - Duration::MAX, Moment::from_nanos(0));
        assert_eq!(Moment::from_nanos(5).since(Moment::from_nanos(7)), Duration::ZERO);
        assert_eq!((now + Duration::from_secs(2)).since(now), Duration::from_secs(2));
    }

    #[tokio::test]
    async fn sleep_never_ends_early() {
        for nanos in [0, 1, 999, 1_000_001, 2_500_000] {
            let at = SystemClock.now() + Duration::from_nanos(nanos);
            SystemClock.sleep_until(at).await;
            assert!(SystemClock.now() >= at);
        }
    }
}
