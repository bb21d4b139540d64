//! The processes of a fleet that moves from one store to another, and the steps in which they are.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use polylock_core::sync::lock;

use super::{grants::Grants, step::Step};
use crate::simulation::{
    network::nanos,
    plan::{LONG_LEASE, PROCESSES, Plan, Planted, SETTLED, stream},
    servers::Life,
};

/// The longest lease in a run whose leases are short, and the longest of the shortest times of holds.
const SHORT_LEASE: Duration = Duration::from_secs(2);

/// The time by which the clocks of two machines may differ while a lease lasts.
const MARGIN: Duration = Duration::from_millis(100);

/// The time before [`SETTLED`] in which no process moves, besides that of the longest lease: a late message may begin a lease.
const AFTER_MOVES: Duration = Duration::from_millis(2900);

/// A process in one of its lives, as its clients know it.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Its step, if it belongs to a fleet that moves.
    pub step: Option<Step>,
    is_ending: Arc<AtomicBool>,
}

impl Place {
    /// Asks the clients of the process to end, as a restart does.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns true once the clients are to begin nothing more.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}

/// The processes of a run. Each uses the stores of one step for all of its life.
#[derive(Debug)]
pub struct Fleet {
    /// The time from which no further process moves.
    pub moves_until: u64,
    /// The step of all processes when the run begins.
    pub first: Step,
    /// The time for which a process that has ended may leave a lock taken.
    pub longest_left: Duration,
    /// The grants of its processes in both stores.
    pub grants: Arc<Grants>,
    state: Mutex<State>,
    has_long_leases: bool,
    skips_both: bool,
}

#[derive(Debug)]
struct State {
    /// The steps in which processes begin their next lives.
    next: [Step; PROCESSES],
    /// The present life of each process.
    places: BTreeMap<usize, (u64, Place)>,
}

impl Fleet {
    /// Draws the fleet of `plan`.
    #[must_use]
    pub fn draw(plan: &Plan) -> Arc<Self> {
        let mut random = stream(plan.seed, &[11]);
        let skips_both = plan.planted == Some(Planted::BothSkippedStep);
        let steps =
            if skips_both { [Step::Old, Step::Old, Step::New] } else { [Step::Old, Step::Both, Step::New] };
        let first = random.choice(steps).unwrap_or(Step::Old);
        let has_long_leases = plan.has_long_leases();
        let longest_left = MARGIN + if has_long_leases { LONG_LEASE } else { SHORT_LEASE };
        let moves_until = nanos(plan.late_time(SETTLED).saturating_sub(longest_left + AFTER_MOVES));
        let state = Mutex::new(State { next: [first; PROCESSES], places: BTreeMap::new() });
        let grants = Arc::default();
        Arc::new(Self { moves_until, first, longest_left, grants, state, has_long_leases, skips_both })
    }

    /// Begins a life of a process, in the step that was last set for it.
    pub fn begin(&self, (process, life): Life) -> Place {
        let state = &mut *lock(&self.state);
        let place = Place { step: Some(state.next[process]), ..Place::default() };
        state.places.insert(process, (life, place.clone()));
        place
    }

    /// Sets the step in which a process begins its next life.
    pub fn set_next(&self, process: usize, step: Step) {
        lock(&self.state).next[process] = step;
    }

    /// Returns the present place of a process.
    #[must_use]
    pub fn place(&self, process: usize) -> Place {
        lock(&self.state).places.get(&process).map(|(_, place)| place.clone()).unwrap_or_default()
    }

    /// Draws the step that follows `step` for the whole fleet, which has come from `before`.
    pub fn draw_next(&self, random: &mut Rng, before: Step, step: Step) -> Step {
        match step {
            Step::Old if self.skips_both => Step::New,
            Step::New if self.skips_both => Step::Old,
            Step::Old | Step::New => Step::Both,
            // With long leases there is no time to wait for what the processes of another step have left behind.
            Step::Both if self.has_long_leases && before != Step::Both => before,
            // Most go on, and some go back.
            Step::Both => {
                let [back, on] =
                    if before == Step::New { [Step::New, Step::Old] } else { [Step::Old, Step::New] };
                if random.u8(..4) == 0 { back } else { on }
            }
        }
    }
}
