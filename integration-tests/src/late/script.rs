//! What happens in one schedule, drawn from a seed: the operations of the four processes, the message that is withheld, and the time at which
//! it is delivered.

use std::time::Duration;

use fastrand::Rng;

use super::{
    acts::{Act, Can, Due, Role, Step},
    message::Way,
    plots::{self, Plot},
    relay::Trap,
};

/// The copies that are delivered in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// None.
    None,
    /// A copy of the withheld message before it.
    Before,
    /// A copy of it afterwards.
    After,
    /// After all steps, copies of all messages: the last one first.
    Reversed,
    /// After all steps, copies of all messages in any order.
    Shuffled,
}

impl Copies {
    /// Returns true if copies of all messages are delivered.
    #[must_use]
    pub const fn are_of_all(self) -> bool {
        matches!(self, Self::Reversed | Self::Shuffled)
    }
}

/// A schedule.
#[derive(Debug, Clone)]
pub struct Script {
    /// The number of its lock.
    pub number: u32,
    /// The operations of holder, adopter and breaker.
    pub steps: Vec<Step>,
    /// Those of the next holder, which begin with [`Act::Begin`].
    pub next: Vec<Step>,
    /// The step during which a message is withheld: of the steps, then of those of the next holder.
    pub trapped: usize,
    /// The message that is withheld.
    pub trap: Trap,
    /// The time at which it is delivered.
    pub due: Due,
    /// The longest time for which it is withheld.
    pub withheld_for: Duration,
    /// The copies in addition.
    pub copies: Copies,
}

/// The shortest time for which a message is withheld.
pub const SHORTEST: Duration = Duration::from_millis(500);

/// The longest time for which a message is withheld.
const LONGEST: Duration = Duration::from_secs(8);

/// The leases of holders, in ms; the shorter ones are drawn more often, because they end while the message is withheld.
const TTLS: [u64; 12] = [100, 300, 600, 1000, 1000, 1500, 2000, 3000, 5000, 30_000, 600_000, 3_600_000];

/// The shortest lease of a store with long ones alone.
const SLOW: Duration = Duration::from_secs(10);

/// Leases up to this are short enough to be left to expire.
const SHORT: Duration = Duration::from_secs(3);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What is drawn so far.
struct Drawing<'r> {
    random: &'r mut Rng,
    can: &'r Can,
    steps: Vec<Step>,
    ttl: Duration,
    has_handle: bool,
    is_held: [bool; 2],
}

impl Drawing<'_> {
    fn ttl(&mut self) -> Duration {
        let drawn = ms(TTLS[self.random.usize(..TTLS.len())]);
        match &self.can.ttl {
            // Half of them may end while a message is withheld.
            Some(range) if *range.start() >= SLOW && self.random.bool() => *range.start(),
            Some(range) if *range.start() >= SLOW => ms(self.random.u64(15..=60) * 1000),
            Some(range) => drawn.clamp(*range.start(), *range.end()),
            None => ms(4000),
        }
    }

    fn step(&mut self, role: Role, act: Act) {
        let after = if self.random.u8(..4) == 0 { self.random.u64(100..600) } else { self.random.u64(..40) };
        self.steps.push(Step { role, act, after: ms(after) });
    }

    /// Draws one of the processes that have a guard.
    fn held_by(&mut self) -> Option<Role> {
        match self.is_held {
            [true, true] => Some([Role::Holder, Role::Adopter][self.random.usize(..2)]),
            [true, false] => Some(Role::Holder),
            [false, true] => Some(Role::Adopter),
            [false, false] => None,
        }
    }

    fn adopt(&mut self) {
        let ttl = match self.random.u8(..3) {
            0 => None,
            _ => Some(self.ttl()),
        };
        self.ttl = self.ttl.max(ttl.unwrap_or_default());
        self.step(Role::Adopter, Act::Adopt { ttl });
        self.is_held[1] = true;
    }

    fn middle(&mut self) {
        let held_by = self.held_by();
        match (self.random.u8(..20), held_by) {
            (0..=4, Some(Role::Holder)) if self.can.handles && !self.has_handle => {
                self.step(Role::Holder, Act::Handle);
                self.has_handle = true;
                if self.random.u8(..3) > 0 {
                    self.adopt();
                }
            }
            (5..=6, Some(role)) if self.can.handles => {
                self.step(role, Act::IntoHandle);
                (self.has_handle, self.is_held[role as usize]) = (true, false);
            }
            (5..=9, _) if self.has_handle && !self.is_held[1] => self.adopt(),
            (10..=11, Some(role)) if self.can.shared => {
                let act = if self.random.bool() { Act::Downgrade } else { Act::Upgrade };
                self.step(role, act);
            }
            (12, _) => {
                self.step(Role::Breaker, Act::Look);
                let force = self.random.u8(..3) == 0;
                self.step(Role::Breaker, Act::Break { force });
            }
            (13, _) => {
                let force = self.random.u8(..3) == 0;
                self.step(Role::Breaker, Act::Break { force });
            }
            (14, _) => self.step(Role::Breaker, Act::Look),
            (_, held_by) => {
                let rest = self.rest();
                self.step(held_by.unwrap_or(Role::Breaker), Act::Rest(rest));
            }
        }
    }

    /// Returns a time in which short leases are renewed.
    fn rest(&mut self) -> Duration {
        let renewed = (self.ttl / 2).min(ms(1500));
        if self.random.bool() { renewed } else { ms(self.random.u64(50..800)) }
    }

    /// Returns the shortest lease.
    fn shortest(&self) -> Duration {
        self.can.ttl.as_ref().map_or(Duration::ZERO, |range| *range.start())
    }

    fn way(&mut self) -> Way {
        match self.random.u8(..12) {
            0..=5 => Way::Release,
            6..=8 => Way::Drop,
            9..=10 => Way::After(ms(self.random.u64(100..1500))),
            _ if self.ttl <= SHORT.max(self.shortest()) || self.random.u8(..4) == 0 => Way::Leave,
            _ => Way::Release,
        }
    }
}

impl Script {
    /// Draws the schedule with this number.
    #[must_use]
    pub fn draw(seed: u64, number: u32, can: &Can) -> Self {
        let mut random = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        if random.bool() {
            return Self::plotted(&mut random, number, can);
        }
        let mut it = Drawing {
            random: &mut random,
            can,
            steps: Vec::new(),
            ttl: Duration::ZERO,
            has_handle: false,
            is_held: [true, false],
        };
        it.ttl = it.ttl();
        let lease = |ttl| can.ttl.is_some().then_some(ttl);
        let shared = can.shared && it.random.u8(..6) == 0;
        let wait = (it.random.u8(..4) > 0).then(|| ms(10_000));
        it.step(Role::Holder, Act::Acquire { ttl: lease(it.ttl), shared, wait });
        if it.random.bool() {
            it.step(Role::Breaker, Act::Look);
        }
        for _ in 0..it.random.usize(1..=4) {
            it.middle();
        }
        if it.held_by().is_none() {
            it.adopt();
        }
        let (role, way) = (it.held_by().unwrap_or(Role::Holder), it.way());
        it.step(role, Act::End(way));
        let begin = it.random.usize(1..=it.steps.len());
        it.steps.insert(begin, Step { role: Role::Next, act: Act::Begin, after: Duration::ZERO });

        let (mut steps, ttl) = (std::mem::take(&mut it.steps), it.ttl);
        it.ttl = it.ttl();
        let shared = can.shared && it.random.u8(..4) == 0;
        let is_slow = can.ttl.as_ref().is_some_and(|range| *range.start() >= SLOW);
        let patience = if is_slow && it.random.u8(..3) == 0 { 20_000 } else { 8000 };
        let wait = (it.random.u8(..5) > 0).then(|| ms(it.random.u64(1000..patience)));
        it.step(Role::Next, Act::Acquire { ttl: lease(it.ttl), shared, wait });
        let rest = it.rest();
        it.step(Role::Next, Act::Rest(rest));
        let way = match it.way() {
            Way::After(_) => Way::Release,
            way => way,
        };
        it.step(Role::Next, Act::End(way));
        let next = it.steps;

        let trapped = Self::trapped(&mut random, &steps, &next);
        if let Some(Step { act: Act::Rest(rest), .. }) = steps.get_mut(trapped) {
            // Long enough for a renewal.
            *rest = (*rest).max((ttl / 2).min(ms(3000)));
        }
        let trap = Self::trap(&mut random, can);
        let due = match random.u8(..10) {
            0..=2 => Due::Time,
            3..=5 => Due::Step(random.usize(trapped.min(steps.len())..=steps.len())),
            6..=8 => Due::NextHolds,
            _ => Due::End,
        };
        let most = if is_slow && random.u8(..3) == 0 { 2 * LONGEST + ms(1000) } else { LONGEST };
        let past = ttl.min(most - ms(1000)) + ms(1000);
        let longest = if random.bool() { past } else { ms(4000).min(past) };
        let withheld_for = ms(random.u64(500..=u64::try_from(longest.as_millis()).unwrap_or(8000).max(501)));
        let copies = Self::copies(&mut random);
        Self { number, steps, next, trapped, trap, due, withheld_for, copies }
    }

    fn plotted(random: &mut Rng, number: u32, can: &Can) -> Self {
        let Plot { steps, next, trapped, withholds_all, closes, due, withheld_for } =
            plots::draw(random, can);
        let mut trap = Self::trap(random, can);
        // A read precedes what ends a hold on these stores.
        let reads = (can.is_quorum || can.is_both || !can.is_fifo) && random.bool();
        let is_end = matches!(
            steps.iter().chain(&next).nth(trapped).map(|step| step.act),
            Some(Act::Break { .. } | Act::End(_))
        );
        trap.skip = if reads && is_end { u32::try_from(can.servers).unwrap_or(1) } else { 0 };
        (trap.all, trap.closes) = (withholds_all, closes);
        if withholds_all {
            trap.servers = u8::MAX;
        }
        let copies = Self::copies(random);
        Self { number, steps, next, trapped, trap, due, withheld_for, copies }
    }

    /// Limits the time for which the message is withheld, and for which the next holder waits.
    pub fn shorten(&mut self) {
        const LIMIT: Duration = ms(4000);
        self.withheld_for = self.withheld_for.min(LIMIT);
        for step in &mut self.next {
            if let Act::Acquire { wait: Some(wait), .. } = &mut step.act {
                *wait = LIMIT.min(*wait);
            }
        }
    }

    /// Returns the operation during which a message is withheld.
    #[must_use]
    pub fn trapped_act(&self) -> Option<Act> {
        self.steps.iter().chain(&self.next).nth(self.trapped).map(|step| step.act)
    }

    /// Draws a step that sends a message.
    fn trapped(random: &mut Rng, steps: &[Step], next: &[Step]) -> usize {
        let weight = |step: &Step| match step.act {
            Act::Begin | Act::Handle => 0,
            Act::Look => 1,
            Act::Acquire { .. } | Act::Rest(_) if step.role == Role::Next => 3,
            Act::Acquire { .. } | Act::Rest(_) => 5,
            Act::IntoHandle | Act::Adopt { .. } | Act::Downgrade | Act::Upgrade => 6,
            Act::End(_) => 7,
            Act::Break { .. } => 12,
        };
        let weights: Vec<usize> = steps.iter().chain(next).map(weight).collect();
        let mut drawn = random.usize(..weights.iter().sum::<usize>().max(1));
        weights
            .iter()
            .position(|weight| match drawn.checked_sub(*weight) {
                Some(rest) => {
                    drawn = rest;
                    false
                }
                None => true,
            })
            .unwrap_or(0)
    }

    fn copies(random: &mut Rng) -> Copies {
        match random.u8(..10) {
            0..=4 => Copies::None,
            5 => Copies::Before,
            6..=7 => Copies::After,
            8 => Copies::Reversed,
            _ => Copies::Shuffled,
        }
    }

    fn trap(random: &mut Rng, can: &Can) -> Trap {
        let all = u8::MAX >> (8 - can.servers.clamp(1, 8));
        let (servers, each) = match (can.is_quorum, can.is_both) {
            (false, false) => (all, false),
            _ => (random.u8(1..=all), true),
        };
        let skip = u32::from(random.u8(..5) == 0);
        Trap { skip, servers, each, all: false, closes: random.bool() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can() -> Can {
        let ttl = Some(ms(100)..=ms(3_600_000));
        Can { shared: true, handles: true, ttl, is_fifo: true, servers: 1, is_quorum: false, is_both: false }
    }

    #[test]
    fn a_seed_determines_the_schedules() {
        let text = |seed| {
            format!("{:?}", (0..50).map(|number| Script::draw(seed, number, &can())).collect::<Vec<_>>())
        };
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn every_kind_of_operation_is_trapped() {
        let mut kinds = std::collections::BTreeSet::new();
        for number in 0..3000 {
            let script = Script::draw(1, number, &can());
            assert!(script.withheld_for >= SHORTEST && (script.withheld_for <= LONGEST || script.trap.all));
            let step = script.steps.iter().chain(&script.next).nth(script.trapped).unwrap();
            let act = format!("{:?}", step.act);
            kinds.insert((step.role, act.split([' ', '(']).next().unwrap().to_owned()));
        }
        // Of the holder: Acquire, IntoHandle, Downgrade, Upgrade, Rest, End; of the adopter the same but Acquire, and Adopt; of the breaker Look
        // and Break; of the next holder Acquire, Rest and End.
        assert_eq!(kinds.iter().filter(|(role, _)| *role != Role::Breaker).count(), 15, "{kinds:?}");
        assert!(kinds.iter().filter(|(role, _)| *role == Role::Breaker).count() >= 2, "{kinds:?}");
    }
}
