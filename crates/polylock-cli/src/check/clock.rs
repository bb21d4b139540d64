//! The clocks of this machine during the check, and the rate of the store's clock.
//!
//! The store's clock is seen in the age of a hold, which the store computes. So no agreement on the time of day is needed.

use std::time::Duration;

use polylock::{Clock, Guard, Moment, Result, SystemClock, core::Locks};
use rustix::time::{ClockId, clock_gettime};

use super::report::Row;

const PART: &str = "clock";
const LOCK: &str = "clock";

/// The difference that a clock may show because of the time between two reads, and of the correction of a wall clock.
const TOLERANCE: Duration = Duration::from_millis(50);
/// The deviation of rates that the library allows for, in parts per million.
const DRIFT_PPM: i128 = 1000;
/// The shortest time over which a rate is compared.
const SHORTEST: Duration = Duration::from_secs(2);

/// The time of each of this machine's clocks, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    awake: i128,
    total: i128,
    wall: i128,
}

impl Sample {
    fn take() -> Self {
        let read = |id| {
            let time = clock_gettime(id);
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        #[cfg(target_os = "linux")]
        let total = read(ClockId::Boottime);
        #[cfg(not(target_os = "linux"))]
        let total = read(ClockId::Monotonic);
        Self { awake: read(ClockId::Monotonic), total, wall: read(ClockId::Realtime) }
    }
}

/// The clocks at the begin of a check.
pub(super) struct Watch {
    sample: Sample,
    guard: Guard,
    /// The age of the hold, by the store, and the times before and after that reply; `None` if the store can't be inspected.
    age: Option<Age>,
}

type Age = (Duration, Moment, Moment);

impl Watch {
    pub(super) async fn begin(locks: &Locks) -> Result<Self> {
        let guard = locks.lock(LOCK).acquire().await?;
        Ok(Self { sample: Sample::take(), age: age(locks).await, guard })
    }

    pub(super) async fn end(self, locks: &Locks) -> Result<Vec<Row>> {
        let (first, last) = (self.sample, Sample::take());
        let of_store = self.age.zip(age(locks).await);
        let is_held = self.guard.is_held();
        if is_held {
            self.guard.release().await?;
        }
        let suspended = (last.total - first.total) - (last.awake - first.awake);
        let stepped = (last.wall - first.wall) - (last.total - first.total);
        let mut rows = vec![
            Row::ok(PART, "suspends", format!("{} ms", suspended / 1_000_000)).warn_if(
                is_beyond(suspended, TOLERANCE),
                "this machine was suspended during the check, so that latencies and leases are not those of a running machine",
            ),
            Row::ok(PART, "wall clock", format!("deviates by {} ms", stepped / 1_000_000)).warn_if(
                is_beyond(stepped, TOLERANCE),
                "the wall clock of this machine was set during the check; the library does not use it, but logs show it",
            ),
        ];
        let name = "store's clock";
        rows.push(match of_store {
            _ if !is_held => Row::skipped(PART, name, "the hold that measures it was lost"),
            None => Row::skipped(PART, name, "the store does not show the age of a hold"),
            Some((_, (_, _, now)))
                if now.as_nanos() < (self.age.map_or(now, |age| age.1) + SHORTEST).as_nanos() =>
            {
                Row::skipped(PART, name, "the check was too short to compare rates")
            }
            Some((first, last)) => rate(name, first, last),
        });
        Ok(rows)
    }
}

fn rate(name: &str, first: Age, last: Age) -> Row {
    let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
    let by_store = nanos(last.0) - nanos(first.0);
    let here = nanos(last.2.since(first.1));
    // The store has computed each age between the request and the reply, and may round it to milliseconds.
    let uncertain = nanos(first.2.since(first.1)) + nanos(last.2.since(last.1)) + 2_000_000;
    let deviation = by_store - here;
    let excess = (deviation.abs() - uncertain).max(0);
    let ppm = excess * 1_000_000 / here.max(1);
    let value = format!(
        "{} ms in {} s of this machine's clock, ± {} ms",
        deviation / 1_000_000,
        here / 1_000_000_000,
        uncertain / 1_000_000
    );
    Row::ok(PART, name, value).warn_if(
        ppm > DRIFT_PPM,
        "the store's clock was set, or runs at another rate than this machine's: a lease may end earlier or later than its holder \
         assumes; let a time service adjust the clock slowly",
    )
}

/// Returns the age of the hold that measures the store's clock.
async fn age(locks: &Locks) -> Option<Age> {
    let sent = SystemClock.now();
    let status = locks.inspect(LOCK).await.ok()?;
    Some((status.holders.first()?.age, sent, SystemClock.now()))
}

fn is_beyond(nanos: i128, limit: Duration) -> bool {
    nanos.unsigned_abs() > limit.as_nanos()
}
