//! Schedules that are likely to show a late message, of each kind that a message may have: most of those that are drawn at random do not.

use std::time::Duration;

use fastrand::Rng;

use super::{
    acts::{Act, Can, Due, Role, Step},
    message::Way,
};

/// The parts of a schedule that a plot determines.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) steps: Vec<Step>,
    pub(super) next: Vec<Step>,
    pub(super) trapped: usize,
    /// True if all messages are withheld from the trapped one on, so that its sender gives up.
    pub(super) withholds_all: bool,
    pub(super) closes: bool,
    pub(super) due: Due,
    pub(super) withheld_for: Duration,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Draws plots.
struct Plotter<'r> {
    random: &'r mut Rng,
    can: &'r Can,
    steps: Vec<Step>,
}

/// Draws a plot.
pub(super) fn draw(random: &mut Rng, can: &Can) -> Plot {
    let mut plotter = Plotter { random, can, steps: Vec::new() };
    loop {
        let drawn = match plotter.random.u8(..8) {
            0 | 1 => Some(plotter.late_claim()),
            2 => Some(plotter.late_break()),
            3 if can.handles => Some(plotter.late_end()),
            4 if can.shared => Some(plotter.late_conversion()),
            5 => Some(plotter.abandoned_break()),
            6 => Some(plotter.abandoned_claim()),
            7 if can.handles => Some(plotter.late_renewal()),
            _ => None,
        };
        if let Some(plot) = drawn {
            return plot;
        }
    }
}

impl Plotter<'_> {
    /// Returns one of these leases in ms, or the nearest one of the store.
    fn lease(&mut self, leases: &[u64]) -> Option<Duration> {
        let range = self.can.ttl.as_ref()?;
        Some(ms(leases[self.random.usize(..leases.len())]).clamp(*range.start(), *range.end()))
    }

    /// Adds a step soon after the last one.
    fn add(&mut self, role: Role, act: Act) -> &mut Self {
        let after = ms(self.random.u64(..60));
        self.steps.push(Step { role, act, after });
        self
    }

    fn acquire(&mut self, leases: &[u64], shared: bool) {
        let ttl = self.lease(leases);
        self.add(Role::Holder, Act::Acquire { ttl, shared, wait: Some(ms(10_000)) });
    }

    fn adopt(&mut self, leases: &[u64]) {
        let ttl = self.lease(leases);
        self.add(Role::Adopter, Act::Adopt { ttl });
    }

    fn rest(&mut self, role: Role) {
        let time = ms(self.random.u64(300..900));
        self.add(role, Act::Rest(time));
    }

    /// Draws how a hold ends soon.
    fn soon(&mut self) -> Way {
        [Way::Release, Way::Drop, Way::After(ms(self.random.u64(100..400)))][self.random.usize(..3)]
    }

    fn plot(&mut self, trapped: usize, due: Due, withheld_for: Duration) -> Plot {
        let shared = self.can.shared && self.random.u8(..4) == 0;
        let steps = std::mem::take(&mut self.steps);
        let (ttl, wait) = (self.lease(&[600, 1500, 30_000]), ms(self.random.u64(3000..7000)));
        self.add(Role::Next, Act::Acquire { ttl, shared, wait: Some(wait) });
        self.rest(Role::Next);
        self.add(Role::Next, Act::End(Way::Release));
        let next = std::mem::take(&mut self.steps);
        Plot { steps, next, trapped, withholds_all: false, closes: true, due, withheld_for }
    }

    /// A time in which the first copy of an operation has not expired.
    fn in_time(&mut self) -> Duration {
        ms(self.random.u64(500..2000))
    }

    /// A claim arrives when its request has been released, by another process or after a short while.
    fn late_claim(&mut self) -> Plot {
        self.acquire(&[600, 2000, 30_000, 3_600_000], false);
        let is_adopted = self.can.handles && self.random.u8(..3) > 0;
        if is_adopted {
            let act = if self.random.bool() { Act::IntoHandle } else { Act::Handle };
            self.add(Role::Holder, act);
            self.adopt(&[600, 2000, 3_600_000]);
        }
        let (is_early, way) = (self.random.bool(), self.soon());
        if is_early {
            self.add(Role::Next, Act::Begin);
        }
        self.add(if is_adopted { Role::Adopter } else { Role::Holder }, Act::End(way));
        if !is_early {
            self.add(Role::Next, Act::Begin);
        }
        let due = if self.random.bool() { Due::Time } else { Due::NextHolds };
        let time = self.in_time();
        self.plot(0, due, time)
    }

    /// A break arrives when the next holder has the lock.
    fn late_break(&mut self) -> Plot {
        self.acquire(&[2000, 30_000, 3_600_000], false);
        let force = self.random.bool();
        self.add(Role::Breaker, Act::Look).add(Role::Breaker, Act::Break { force });
        let way = if self.random.bool() { Way::Drop } else { Way::Release };
        self.add(Role::Next, Act::Begin).add(Role::Holder, Act::End(way));
        let time = self.in_time();
        self.plot(2, Due::NextHolds, time)
    }

    /// The holder gives up ending the hold, which the adopter continues to renew; then the message arrives.
    fn late_end(&mut self) -> Plot {
        self.acquire(&[300, 600, 1500], false);
        self.add(Role::Holder, Act::Handle);
        self.adopt(&[600, 1500, 5000]);
        let way = if self.random.bool() { Way::Release } else { Way::After(ms(self.random.u64(100..1000))) };
        self.add(Role::Next, Act::Begin).add(Role::Holder, Act::End(way));
        self.rest(Role::Adopter);
        self.rest(Role::Adopter);
        self.add(Role::Breaker, Act::Look);
        self.rest(Role::Adopter);
        self.add(Role::Breaker, Act::Look).add(Role::Adopter, Act::End(Way::Release));
        let closes = self.random.bool();
        Plot { withholds_all: true, closes, ..self.plot(4, Due::Step(6), ms(20_000)) }
    }

    /// A conversion arrives after the next one.
    fn late_conversion(&mut self) -> Plot {
        let shared = self.random.bool();
        let (first, second) =
            if shared { (Act::Upgrade, Act::Downgrade) } else { (Act::Downgrade, Act::Upgrade) };
        self.acquire(&[2000, 30_000, 3_600_000], shared);
        self.add(Role::Holder, first).add(Role::Holder, second).add(Role::Next, Act::Begin);
        self.rest(Role::Holder);
        self.add(Role::Breaker, Act::Look);
        self.rest(Role::Holder);
        self.add(Role::Holder, Act::End(Way::Release));
        let due = if self.random.bool() { Due::NextHolds } else { Due::Time };
        let time = self.in_time();
        self.plot(1, due, time)
    }

    /// The breaker gives up; then the break arrives.
    fn abandoned_break(&mut self) -> Plot {
        self.acquire(&[300, 600, 1500, 3000], false);
        let force = self.random.bool();
        self.add(Role::Breaker, Act::Look)
            .add(Role::Breaker, Act::Break { force })
            .add(Role::Next, Act::Begin);
        self.rest(Role::Holder);
        self.rest(Role::Holder);
        self.add(Role::Breaker, Act::Rest(ms(50)));
        self.rest(Role::Holder);
        self.add(Role::Holder, Act::End(Way::Release));
        let closes = self.random.bool();
        Plot { withholds_all: true, closes, ..self.plot(2, Due::Step(6), ms(20_000)) }
    }

    /// The holder gives up; then its claims, and the releases that undo them, arrive.
    fn abandoned_claim(&mut self) -> Plot {
        let (ttl, wait) = (self.lease(&[600, 2000, 3_600_000]), ms(self.random.u64(300..2000)));
        self.add(Role::Holder, Act::Acquire { ttl, shared: false, wait: Some(wait) });
        self.add(Role::Next, Act::Begin);
        let (closes, time) = (self.random.bool(), ms(self.random.u64(500..9000)));
        Plot { withholds_all: true, closes, ..self.plot(0, Due::Time, time) }
    }

    /// A renewal arrives when the hold is parked, or was left.
    fn late_renewal(&mut self) -> Plot {
        self.acquire(&[600, 1500, 3000], false);
        self.add(Role::Holder, Act::Handle);
        self.adopt(&[600, 1500]);
        self.add(Role::Next, Act::Begin).add(Role::Adopter, Act::Rest(ms(600)));
        let way = match self.random.u8(..3) {
            0 => Way::Leave,
            1 => Way::Release,
            _ => Way::After(ms(self.random.u64(300..1200))),
        };
        self.add(Role::Holder, Act::End(way));
        let due = if self.random.bool() { Due::NextHolds } else { Due::Time };
        let time = self.in_time();
        self.plot(4, due, time)
    }
}
