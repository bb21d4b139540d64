//! The moves of a fleet from one store to another, as an operator makes them: a process ends, or is killed, and begins again in another step.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;

use super::{Node, World, lock};
use crate::simulation::{
    both::{fleet::Fleet, step::Step},
    network::nanos,
    plan::{Fault, FaultKind, PROCESSES, Planted, between, stream},
    time::MS,
};

/// The time in which a process may end by itself, after which it is killed.
const GRACE: Duration = Duration::from_millis(1500);

impl World {
    /// Moves the processes of the fleet one by one, from step to step. Processes of the old store alone and of the new store alone never
    /// run together: what those of the one step have left behind ends before the other one begins, and the stores have exchanged their tokens.
    pub(super) async fn migrate(self: Arc<Self>, fleet: Arc<Fleet>) {
        let mut random = stream(self.plan.seed, &[12]);
        let [mut before, mut step] = [fleet.first; 2];
        // The time at which the last process of a step has ended.
        let mut ended: BTreeMap<Step, u64> = BTreeMap::new();
        let waits = self.plan.planted != Some(Planted::BothSkippedStep);
        while self.time.now() < fleet.moves_until {
            self.pass(between(&mut random, 0..1500)).await;
            let to = fleet.draw_next(&mut random, before, step);
            let opposite = if to == Step::Old { Step::New } else { Step::Old };
            if let Some(at) = ended.get(&opposite).filter(|_| to != Step::Both && waits) {
                self.time.sleep_until(at + nanos(fleet.longest_left)).await;
                while !fleet.grants.has_both_tokens() && self.time.now() < fleet.moves_until {
                    self.pass(Duration::from_millis(50)).await;
                }
            }
            let is_reverted = random.u8(..6) == 0;
            let mut numbers: Vec<usize> = (0..PROCESSES).collect();
            random.shuffle(&mut numbers);
            let moving = if is_reverted { random.usize(1..PROCESSES) } else { PROCESSES };
            let there = numbers.iter().take(moving).map(|number| (*number, to));
            let back = numbers.iter().take(moving).filter(|_| is_reverted).map(|number| (*number, step));
            for (number, to) in there.chain(back) {
                if random.bool() {
                    self.pass(between(&mut random, 0..1000)).await;
                }
                if self.time.now() >= fleet.moves_until {
                    return;
                }
                self.move_process(&fleet, number, to, &mut random).await;
            }
            let left = if is_reverted { to } else { step };
            ended.insert(left, self.time.now());
            if left != Step::Both {
                fleet.grants.end_step();
            }
            if !is_reverted {
                (before, step) = (step, to);
            }
        }
    }

    async fn pass(&self, time: Duration) {
        self.time.sleep_until(self.time.now() + nanos(time)).await;
    }

    /// Ends a process, and starts it again in this step.
    async fn move_process(&self, fleet: &Fleet, number: usize, to: Step, random: &mut Rng) {
        fleet.set_next(number, to);
        let now = self.time.now();
        if random.bool() {
            self.timeline.note("fleet", || format!("p{number} is to end, for the step {to:?}"));
            fleet.place(number).end();
            while self.time.now() < now + nanos(GRACE) {
                self.time.sleep_until(self.time.now() + 10 * MS).await;
                // A crash may have ended it meanwhile.
                if fleet.place(number).step == Some(to) || self.restart_ended(number) {
                    return;
                }
            }
        }
        self.timeline.note("fleet", || format!("p{number} is killed, for the step {to:?}"));
        let (at, lasts) = (Duration::from_nanos(self.time.now()), between(random, 1..300));
        let kill = Fault { at, lasts, server: 0, kind: FaultKind::Crash(number) };
        self.begin(kill);
        self.pass(lasts).await;
        self.end(kill);
    }

    /// Starts a process again whose clients have ended. Returns false if they have not, or if it is paused.
    fn restart_ended(&self, number: usize) -> bool {
        let nodes = &mut lock(&self.nodes);
        let node = &mut nodes[number];
        if node.stops > 0 || !node.work.is_finished() {
            return false;
        }
        // What it does in the background ends with it.
        node.process.crash();
        self.servers.end_process(number);
        self.bury(number, self.time.now());
        let stopped = std::mem::take(&mut node.stopped);
        let new = self.start(number, node.life + 1);
        nodes[number] = Node { stopped, ..new };
        true
    }
}
