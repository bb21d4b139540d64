//! A candidate of an election.

use std::{
    future::{Future, poll_fn},
    path::Path,
    pin::pin,
    time::Duration,
};

use polylock::Term;
use polylock_integration_tests::{
    clock::{self, now},
    election::Journal,
};

use crate::task::{Task, print_line};

/// `lead URL NAME DIRECTORY`: campaigns until it is killed, and records the work of each of its terms in a file of the directory.
pub(crate) async fn run(task: &Task) {
    let directory = Path::new(task.text(0));
    let locks = task.locks().await;
    print_line("ready");
    let process = std::process::id();
    let election = locks.election(&task.name).label(process.to_string());
    election.run(async |term: Term| work(&term, directory, process).await).await.unwrap();
}

/// Works until the term ends.
async fn work(term: &Term, directory: &Path, process: u32) {
    let mut journal = Journal::create(directory, term.fencing_token().get(), process, now()).unwrap();
    let busy = async {
        loop {
            clock::pause(Duration::from_millis(1)).await;
        }
    };
    let mut busy = pin!(busy);
    poll_fn(|context| {
        let polled_at = now();
        journal.polled(polled_at, term.is_leading()).unwrap();
        busy.as_mut().poll(context)
    })
    .await;
}
