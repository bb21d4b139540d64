//! Candidates of an election in several processes, of which the leader is killed, stopped or cut off again and again: the work of two leaders
//! never overlaps, and another candidate leads soon. On the stores that keep queues: on the others the time until a waiter is served has no
//! such limit.

use std::{path::Path, time::Duration};

use polylock::{Locks, Moment};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    election::{Recorded, overlaps, terms},
    load::turn,
    on_queues,
    process::Process,
    proxy::{End, Flow, Proxy},
    stores::{namespace, wait_for_waiters},
};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::{
    SLACK,
    kills::{BUSY, assert_within, with_short_lease},
    worker,
};

const CANDIDATES: usize = 8;
const NAME: &str = "leader";

on_queues! { the_work_of_two_leaders_never_overlaps }

/// A fault of the leader.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Stop,
    /// No byte passes between it and the server.
    CutOff,
}

/// The number of faults: `POLYLOCK_TEST_ELECTIONS`, six by default.
fn faults() -> usize {
    std::env::var("POLYLOCK_TEST_ELECTIONS").map_or(6, |count| count.parse().unwrap())
}

/// A candidate, behind a proxy of its own if the store has a server.
struct Candidate {
    process: Process,
    url: String,
    proxy: Option<Proxy>,
}

impl Candidate {
    fn start(url: &str, directory: &Path) -> Self {
        let proxied = Proxy::in_front_of(url);
        let (proxy, url) = proxied.map_or((None, url.to_owned()), |(proxy, url)| (Some(proxy), url));
        let process = start(&url, directory);
        Self { process, url, proxy }
    }

    fn begin(&mut self, fault: Fault) {
        match (fault, &self.proxy) {
            (Fault::Kill, _) => drop(self.process.kill()),
            (Fault::CutOff, Some(proxy)) => proxy.set_both(Flow::Drop),
            (Fault::Stop | Fault::CutOff, _) => self.process.stop(),
        }
    }

    /// Ends the fault: the process campaigns again.
    fn end(&mut self, fault: Fault, directory: &Path) {
        match (fault, &self.proxy) {
            (Fault::Kill, _) => self.process = start(&self.url, directory),
            (Fault::CutOff, Some(proxy)) => {
                proxy.set_both(Flow::Pass);
                proxy.cut(End::Reset);
            }
            (Fault::Stop | Fault::CutOff, _) => self.process.resume(),
        }
    }
}

fn start(url: &str, directory: &Path) -> Process {
    let mut process = worker("lead", url, NAME, &[directory.to_str().unwrap()]);
    process.expect_line("ready");
    process
}

/// Waits for a term with a greater token than `before`.
async fn next_term(directory: &Path, before: u64, limit: Duration) -> Recorded {
    let until = now() + limit;
    loop {
        if let Some(term) = terms(directory).into_iter().find(|term| term.token > before) {
            return term;
        }
        assert!(now() < until, "no new leader within {limit:?}");
        pause(Duration::from_millis(5)).await;
    }
}

async fn the_work_of_two_leaders_never_overlaps(store: &str) {
    let _turn = turn().await;
    let (namespace, directory) = (namespace(store).await, TempDir::new().unwrap());
    let directory = directory.path();
    let (url, ttl) = with_short_lease(&namespace);
    let locks = Locks::connect(&url).await.unwrap();
    let mut candidates: Vec<Candidate> =
        block_in_place(|| (0..CANDIDATES).map(|_| Candidate::start(&url, directory)).collect());
    let mut times = Vec::new();
    for round in 0..faults() {
        let fault = [Fault::Kill, Fault::Stop, Fault::CutOff][round % 3];
        // All campaign, so the next leader is in the queue.
        wait_for_waiters(&locks, NAME, CANDIDATES - 1).await;
        next_term(directory, 0, TIMEOUT).await;
        let leader = *terms(directory).last().unwrap();
        let candidate = candidates.iter_mut().find(|one| one.process.id() == leader.process).unwrap();
        // At any time of the lease.
        pause(ttl / 7 * u32::try_from(round % 7).unwrap()).await;
        let began: Moment = now();
        block_in_place(|| candidate.begin(fault));
        let next = next_term(directory, leader.token, ttl + SLACK + BUSY + TIMEOUT).await;
        let took = next.start.since(began);
        println!("{store}: {fault:?}: another leader after {took:.2?}");
        times.push(took);
        block_in_place(|| candidate.end(fault, directory));
    }
    wait_for_waiters(&locks, NAME, CANDIDATES - 1).await;
    let terms = terms(directory);
    assert!(terms.len() > faults(), "{terms:?}");
    assert_eq!(overlaps(&terms), [], "the work of two leaders overlaps");
    let late: u64 = terms.iter().map(|term| term.late).sum();
    assert!(late <= 1 + faults() as u64 / 100, "{late} polls of work after the end of its term: {terms:?}");
    assert_within(ttl + SLACK, times);
}
