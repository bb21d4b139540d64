//! Explores a model, and its twins. With the environment variable `POLYLOCK_MODEL_PROGRESS`, the progress and the violations of the
//! twins are written to the standard error.

use std::{env, fmt::Debug, hash::Hash, io};

use polylock_core::{Clock, SystemClock};
use stateright::{Checker, HasDiscoveries, Model, Path, report::WriteReporter};

/// The number of threads of an exploration.
const THREADS: usize = 2;

/// A model of a protocol, with or without a planted bug.
pub trait Protocol:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
    /// The name of the model.
    const NAME: &'static str;
    /// The bounds of the exploration.
    const BOUNDS: &'static str;
    /// A planted bug.
    type Bug: Copy + Debug;
    /// The planted bugs, each with the property that it violates.
    const TWINS: &'static [(Self::Bug, &'static str)];

    /// Creates the model. Without a bug, it must hold all its properties.
    fn new(bug: Option<Self::Bug>) -> Self;
}

/// The check of a model and its twins.
pub type Check = fn() -> Report;

/// The result of a complete exploration.
#[derive(Debug, Clone)]
pub struct Report {
    /// The name of the model.
    pub model: &'static str,
    /// The bounds of the exploration.
    pub bounds: &'static str,
    /// The number of different states.
    pub states: usize,
    /// The length of the longest shortest way to a state.
    pub depth: usize,
    /// The duration in seconds.
    pub seconds: f64,
    /// The twins.
    pub twins: Vec<Twin>,
}

/// A twin, and the violation that the exploration has found.
#[derive(Debug, Clone)]
pub struct Twin {
    /// The planted bug.
    pub bug: String,
    /// The property that it violates.
    pub property: &'static str,
    /// The number of its steps. A shorter violation may exist, unless violations are shown.
    pub steps: usize,
}

/// Explores the model without a bug, and then its twins.
///
/// # Panics
/// If the model violates a property or never reaches a state that it must reach, or if a twin does not violate its property.
#[must_use]
pub fn check<P: Protocol>() -> Report {
    let began = SystemClock.now();
    let checker = P::new(None).checker().threads(THREADS).spawn_bfs();
    let checker = match shows_progress() {
        true => checker.join_and_report(&mut WriteReporter::new(&mut io::stderr())),
        false => checker.join(),
    };
    let seconds = SystemClock.now().since(began).as_secs_f64();
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        let is_failure = property.expectation.discovery_is_failure();
        let trace = found.as_ref().map(trace).unwrap_or_default();
        assert!(found.is_some() != is_failure, "{}: {}\n{trace}", P::NAME, property.name);
    }
    assert!(checker.is_done());
    Report {
        model: P::NAME,
        bounds: P::BOUNDS,
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        seconds,
        twins: P::TWINS.iter().map(|(bug, property)| twin::<P>(*bug, property)).collect(),
    }
}

/// Returns true if the progress of an exploration and the violations by twins are shown.
fn shows_progress() -> bool {
    env::var_os("POLYLOCK_MODEL_PROGRESS").is_some()
}

/// Returns a violation of `property` by the model with `bug`: the shortest one if it is shown, which takes longer to find.
fn twin<P: Protocol>(bug: P::Bug, property: &'static str) -> Twin {
    let missing = || panic!("{}: {bug:?} does not violate: {property}", P::NAME);
    let mut path = violation::<P>(bug, property, usize::MAX).unwrap_or_else(missing);
    if shows_progress() {
        while let Some(shorter) = violation::<P>(bug, property, steps(&path)) {
            path = shorter;
        }
        eprintln!("{}: {bug:?}: {property}\n{}", P::NAME, trace(&path));
    }
    Twin { bug: format!("{bug:?}"), property, steps: steps(&path) }
}

/// Returns a violation with fewer steps than `limit`.
fn violation<P: Protocol>(
    bug: P::Bug,
    property: &'static str,
    limit: usize,
) -> Option<Path<P::State, P::Action>> {
    let checker = P::new(Some(bug)).checker().threads(THREADS);
    let checker = checker.finish_when(HasDiscoveries::AnyOf([property].into()));
    let checker = if limit == usize::MAX { checker } else { checker.target_max_depth(limit + 1) };
    checker.spawn_bfs().join().discovery(property)
}

fn steps<S, A>(path: &Path<S, A>) -> usize
where
    S: Clone + Debug + PartialEq,
    A: Clone + Debug + PartialEq,
{
    path.clone().into_actions().len()
}

/// Returns the steps of a path, one a line, and its last state.
fn trace<S, A>(path: &Path<S, A>) -> String
where
    S: Clone + Debug + PartialEq,
    A: Clone + Debug + PartialEq,
{
    let steps = path.clone().into_actions().into_iter().map(|action| format!("  {action:?}\n"));
    steps.chain([format!("  {:#?}\n", path.last_state())]).collect()
}
