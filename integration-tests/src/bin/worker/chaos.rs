//! The clients of one process in a run of `chaos`.

use std::time::Duration;

use polylock_integration_tests::chaos::{
    client::{self, Work},
    planted::ClientBug,
};

use crate::task::Task;

/// `chaos URL NAME DIRECTORY SEED CLIENTS SHORT LONG BUG DENSE HANDS_OVER OUTLASTS`: uses the store until a line `stop` arrives. NAME is the name of the process;
/// SHORT and LONG are leases in milliseconds; the last three are `true` or `false`.
pub(crate) async fn run(task: &Task) {
    let work = Work {
        url: task.url.clone(),
        name: task.name.clone(),
        directory: task.text(0).into(),
        seed: task.number(1),
        clients: usize::try_from(task.number(2)).unwrap(),
        leases: (task.number(3), task.number(4)),
        bug: ClientBug::named(task.text(5)),
        is_dense: task.text(6) == "true",
        hands_over: task.text(7) == "true",
        outlasts: task.text(8) == "true",
    };
    // Longer than all leases of dead clients.
    let patience = Duration::from_millis(3 * work.leases.1) + Duration::from_secs(15);
    client::work(work, patience).await.unwrap();
}
