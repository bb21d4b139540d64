//! The random decisions of the clients.

use std::time::Duration;

use polylock_core::Request;

use super::{
    network::nanos,
    plan::{FAULTS_END, StoreKind, WORK_END},
    ways::{End, Way},
    workload::{Client, Wish},
};

/// The longest time of a claim without faults: several round trips of the slowest link.
const LONGEST_CLAIM: Duration = Duration::from_millis(300);

impl Client {
    /// Returns a request of this client.
    pub fn draw_wish(&mut self) -> Wish {
        self.attempts += 1;
        let owner = format!("{}/{}", self.name, self.attempts);
        let ttl = self.draw_ttl();
        let (mut min_hold, mut max_hold) = (Duration::ZERO, None);
        // On Azure a hold is notified of a break when it is renewed, and one with a longest time need not be.
        if self.is_calm() && self.plan.store != StoreKind::Azure {
            match self.random.u8(..8) {
                0 => min_hold = self.between(1..2000),
                1 => max_hold = Some(self.between(20..2000)),
                _ => {}
            }
        }
        let way = self.draw_way(ttl);
        if !matches!(way, Way::Try | Way::WaitFor(_)) {
            // A hold that ends before the reply to its claim has arrived is never acquired.
            max_hold = max_hold.map(|max| max.max(LONGEST_CLAIM));
        }
        Wish { owner, ttl, min_hold, max_hold, way, invoked: self.time.now() }
    }

    /// Returns a random lease.
    pub fn draw_ttl(&mut self) -> Duration {
        let ttl = self.between(self.ttl_ms.clone());
        if !self.plan.has_long_leases() {
            return ttl;
        }
        match self.random.u8(..4) {
            0 => self.between(2000..4000),
            1 => self.between(4000..10_000),
            _ => ttl,
        }
    }

    fn draw_way(&mut self, ttl: Duration) -> Way {
        match self.random.u8(..if self.is_calm() { 16 } else { 10 }) {
            0 => Way::Try,
            1..=5 => Way::Wait,
            6 | 7 => Way::WaitFor(self.between(1..1500)),
            8 | 9 => Way::Drop(self.random.u32(0..12), self.between(1..600)),
            10..=12 => Way::Try,
            _ => {
                let longest = 2 * ttl.min(Request::MAX_QUEUE_LEASE);
                let time = longest.mul_f64(self.random.f64());
                Way::Stall(self.random.u32(1..5), time, self.random.u8(..3) == 0)
            }
        }
    }

    /// Returns the time of a hold, and the way in which it ends.
    pub fn draw_hold(&mut self) -> (Duration, End) {
        let mut lasts = match self.random.u8(..4) {
            0 => self.between(300..1500),
            _ => self.between(0..100),
        };
        if self.is_calm() && self.random.u8(..8) == 0 {
            // Some of the long leases are renewed.
            lasts = self.between(1500..6000);
        }
        let may_expire = self.may_expire();
        let end = match self.random.u8(..if self.is_calm() { 12 } else { 10 }) {
            0..=4 => End::Release,
            5 => End::DropRelease,
            8 if may_expire => End::LeaveToExpire,
            9 if may_expire => End::ReleaseAfter(self.between(1..1000)),
            10 | 11 => End::StallRelease(self.between(1..500)),
            _ => End::Drop,
        };
        (lasts, end)
    }

    /// Returns true from [`WORK_END`] on, and once the process is to end.
    pub fn is_to_end(&self) -> bool {
        self.place.is_ending() || self.time.now() >= nanos(self.plan.late_time(WORK_END))
    }

    /// Returns true if a lease may be left to expire: at the end of a busy run it looks like a leak.
    pub fn may_expire(&self) -> bool {
        let leases_end =
            if self.is_calm() { self.plan.late_time(WORK_END) } else { self.plan.time(FAULTS_END) };
        self.time.now() < nanos(leases_end)
    }
}
