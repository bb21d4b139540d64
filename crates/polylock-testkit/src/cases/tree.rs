//! The nodes of a tree: a node excludes its ancestors and its descendants.

use std::sync::Arc;

use polylock_core::{Error, InvalidName, Mode, Modes, MultiGuard, MultiLock};

use super::{
    exclusion::{Contention, increment},
    many::{all, released_all, try_all},
};
use crate::trial::{Outcome, Trial, acquired, join, lock_name, released, scale, soon, tried};

/// Nodes of two branches, and one with a name that begins as that of a branch does.
const NODES: [&str; 5] = ["db", "db/a", "db/a/x", "db/b", "db/ab"];

/// Returns true if one of the nodes is the other one, or an ancestor of it.
fn share_a_branch(one: &str, other: &str) -> bool {
    let is_below = |node: &str, ancestor: &str| {
        node.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_below(one, other) || is_below(other, one)
}

fn in_mode(node: MultiLock, is_shared: bool) -> MultiLock {
    if is_shared { node.shared() } else { node }
}

pub(super) async fn nodes_exclude_their_ancestors_and_descendants(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    for held in NODES {
        for is_held_shared in [true, false] {
            let holder = all(in_mode(here.tree(held), is_held_shared)).await;
            for wanted in NODES {
                for is_shared in [true, false] {
                    let second = try_all(in_mode(there.tree(wanted), is_shared)).await;
                    let conflicts = share_a_branch(held, wanted) && !(is_held_shared && is_shared);
                    assert_eq!(
                        second.is_none(),
                        conflicts,
                        "{wanted}, shared {is_shared}, beside {held}, shared {is_held_shared}: granted although it shares a \
                         branch, or refused although it does not"
                    );
                    if let Some(second) = second {
                        released_all(second).await;
                    }
                }
            }
            released_all(holder).await;
        }
    }
    trial.assert_empty(&NODES, "at the end").await;
    Ok(())
}

pub(super) async fn a_lock_of_the_root_excludes_the_tree(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let node = all(here.tree("db/a/x")).await;
    assert!(tried(there.lock("db")).await.is_none(), "the root was granted beside {node:?}");
    released_all(node).await;
    let root = acquired(there.lock("db")).await;
    assert!(try_all(here.tree("db/a/x").shared()).await.is_none(), "a node was granted beside {root:?}");
    released(root).await;
    trial.assert_empty(&NODES, "at the end").await;
    Ok(())
}

/// Tasks increment the number of one leaf, or under the lock of the root those of all leaves.
pub(super) async fn tasks_lose_no_update(trial: Trial) -> Outcome {
    const TASKS: usize = 8;
    const LEAVES: usize = 3;
    let rounds = 3 * scale();
    let connections = [trial.locks().await, trial.locks().await];
    let contention = Arc::new(Contention::default());
    let workers: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, contention) = (connections[task % 2].clone(), contention.clone());
            tokio::spawn(async move {
                for round in 0..rounds {
                    let leaf = contention.number(task + round);
                    let guard = all(locks.tree(format!("root/{}", leaf.name))).await;
                    increment(leaf).await;
                    ended(guard).await;

                    let guard = all(locks.tree("root")).await;
                    for leaf in (0..LEAVES).map(|leaf| contention.number(leaf)) {
                        increment(leaf).await;
                    }
                    ended(guard).await;
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    contention.check_sum(TASKS * rounds * (1 + LEAVES));
    trial.assert_empty(&["root", "root/one", "root/two", "root/three"], "at the end").await;
    Ok(())
}

async fn ended(guard: MultiGuard) {
    guard.ensure_held().expect("holds with a lease of a minute were lost at once");
    released_all(guard).await;
}

pub(super) async fn invalid_nodes_are_refused_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    for (path, at) in [("/db", 0), ("db/", 3), ("db//a", 3)] {
        match soon("acquire", locks.tree(path).acquire()).await {
            Err(Error::InvalidName(reason)) => {
                assert_eq!(reason, InvalidName::EmptyComponent { at }, "{path}");
            }
            other => panic!("expected InvalidName for {path:?}, got {other:?}"),
        }
    }
    for mode in Mode::ALL.into_iter().filter(|mode| ![Mode::Shared, Mode::Exclusive].contains(mode)) {
        let refused = soon("acquire", locks.tree("db/a").mode(mode).acquire()).await;
        assert!(matches!(refused, Err(Error::Config(_))), "expected an error for {mode}, got {refused:?}");
    }
    if trial.capabilities().modes != Modes::AllSix {
        let refused = soon("acquire", locks.tree("db/a").acquire()).await;
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "expected Unsupported, got {refused:?}");
    }
    assert!(recording.calls().is_empty(), "requests were sent before the error");

    // A root has no ancestors, so every store has its lock.
    let root = all(locks.tree("db")).await;
    assert!(root.names().eq([&lock_name("db")]), "{root:?}");
    released_all(root).await;
    Ok(())
}
