//! The clients of one process. Each acquires, holds and releases locks in turn, in all the ways that programs do, and writes its history
//! to files that survive the process.

mod candidate;
mod files;
pub(super) mod handover;
mod work;

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write},
    pin::pin,
    process::id,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use polylock::{Error, Locks, LostReason, Mode, OwnerId, Progress};
use polylock_core::{Clock, Moment, SystemClock, sync::lock};
use polylock_testkit::history::{Attempt, Recorder};

use self::files::{Files, note_stalls};
pub use self::{
    files::{FILES, STALL},
    work::Work,
};
use super::planted::ClientBug;
use crate::{
    clock::{now, pause},
    recipe::{Held, Recipe},
    simulation::{
        plan::{between, stream},
        ways::{End, Way, acquire, finish},
    },
};

/// The locks for which clients wait most of the time.
const BUSY: [&str; 3] = ["orders", "jobs", "cron"];

/// The locks that are free most of the time.
const RARE: [&str; 4] = ["rare/1", "rare/2", "rare/3", "rare/4"];

/// The locks that some clients of each process hold for long: these are the holds that a fault may cost.
const LONG: [&str; 6] = ["leader", "backup", "long/1", "long/2", "long/3", "long/4"];

/// The number of these clients.
const HOLDERS: usize = 2;

/// The lock for which a crowd waits.
const CROWDED: &str = "crowded";

/// The number of further locks of a dense process.
const MANY: usize = 32;

/// The number of clients from which they delay others.
pub const LOAD: usize = 100;

/// A try with this outage waits for the store for longer than any fault lasts.
const OUTAGE: Duration = Duration::from_secs(60);

/// The number of tries of each client of a rush.
const TRIES: usize = 4;

/// Returns the names of all locks.
pub fn names() -> impl Iterator<Item = String> {
    let fixed = BUSY.into_iter().chain(RARE).chain(LONG).chain([CROWDED]).map(str::to_owned);
    fixed.chain((0..MANY).map(many))
}

/// Returns the name of a lock of a dense process.
fn many(number: usize) -> String {
    format!("many/{number}")
}

/// Returns true if clients lock this name through all recipes. A name of two parts is no root of a tree, and a crowd waits for one lock.
#[must_use]
pub fn has_recipes(name: &str) -> bool {
    name != CROWDED && !name.contains('/')
}

/// Uses the store until a line `stop` arrives. A line `crowd N` makes N more clients wait for one lock, and `rush N` makes N more clients
/// try locks.
///
/// Prints `ready` when the store is open. At the end it prints `stuck NAME CLIENT INVOKED` for each acquisition that has not ended within
/// `patience`, then `done`, or `busy` if background work is left.
///
/// # Errors
/// If it can't write its files.
pub async fn work(work: Work, patience: Duration) -> io::Result<()> {
    let files = Arc::new(Files::create(&work.directory, &work.name)?);
    note_stalls(files.clone());
    let locks = open(&work).await;
    let process = Arc::new(Process {
        work,
        locks: locks.clone(),
        recorder: Recorder::new(),
        files,
        waiting: Mutex::default(),
        active: AtomicUsize::new(0),
        stops: AtomicBool::new(false),
    });
    print(&"ready");
    for number in 0..process.work.clients {
        process.spawn(number, if number < HOLDERS { Role::Holder } else { Role::User }, None);
    }
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut next = 1000;
    while let Some(line) = lines.recv().await {
        let (role, count) = match line.split_once(' ') {
            Some(("crowd", count)) => (Role::Crowd, count),
            Some(("rush", count)) => (Role::Rush, count),
            _ => break,
        };
        let count = count.parse().unwrap_or(0);
        let load = (count >= LOAD).then(|| Arc::new(Load { files: process.files.clone(), began: now() }));
        for _ in 0..count {
            process.spawn(next, role, load.clone());
            next += 1;
        }
    }
    process.stops.store(true, SeqCst);
    let limit = now() + patience;
    while process.active.load(SeqCst) > 0 && now() < limit {
        pause(Duration::from_millis(5)).await;
    }
    for (name, client, invoked) in lock(&process.waiting).iter() {
        print(&format_args!("stuck {name} {client} {invoked}"));
    }
    drop(process);
    print(if locks.close(patience).await { &"done" } else { &"busy" });
    Ok(())
}

/// Opens the store, however long it takes.
async fn open(work: &Work) -> Locks {
    loop {
        let mut builder = Locks::builder(&work.url);
        if let Some(clock) = work.bug.and_then(ClientBug::clock) {
            builder = builder.clock(clock);
        }
        match builder.connect().await {
            Ok(locks) => return locks,
            Err(error) if error.is_temporary() => pause(Duration::from_millis(50)).await,
            Err(error) => panic!("can't open the store: {}", error.chain()),
        }
    }
}

/// Prints a line for the run.
fn print(line: &dyn fmt::Display) {
    let mut out = io::stdout().lock();
    // An error means that the run has ended.
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

#[derive(Debug)]
struct Process {
    work: Work,
    locks: Locks,
    recorder: Recorder,
    files: Arc<Files>,
    /// The acquisitions without a time limit that have not ended.
    waiting: Mutex<BTreeSet<(String, String, u64)>>,
    /// The number of clients that have not ended.
    active: AtomicUsize,
    stops: AtomicBool,
}

impl Process {
    fn spawn(self: &Arc<Self>, number: usize, role: Role, load: Option<Arc<Load>>) {
        let client = Client {
            process: self.clone(),
            _load: load,
            name: format!("{}.{number}", self.work.name),
            requests: 0,
            random: stream(self.work.seed, &[number as u64]),
        };
        self.active.fetch_add(1, SeqCst);
        tokio::spawn(client.run(role));
    }
}

/// The part of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It uses busy locks for short times.
    User,
    /// It uses few locks for long.
    Holder,
    /// It is one of many that wait for one lock.
    Crowd,
    /// It is one of many that try locks.
    Rush,
}

/// Many clients that use the store for a moment. The time until the last of them has ended is noted.
#[derive(Debug)]
struct Load {
    files: Arc<Files>,
    began: Moment,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.files.write(3, format_args!("{} {}", self.began.as_nanos(), now().as_nanos()));
    }
}

struct Client {
    process: Arc<Process>,
    _load: Option<Arc<Load>>,
    name: String,
    /// The number of requests so far.
    requests: u64,
    random: Rng,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.process.active.fetch_sub(1, SeqCst);
    }
}

impl Client {
    /// Uses locks until the process stops; a crowd uses one lock, once, and a rush tries a few.
    async fn run(mut self, role: Role) {
        if role == Role::Crowd {
            let lasts = between(&mut self.random, 0..2);
            return self.hold(CROWDED, Mode::Exclusive, Way::Wait, lasts, End::Release).await;
        }
        if role == Role::Rush {
            for _ in 0..TRIES {
                let name = many(self.random.usize(..MANY));
                self.hold(&name, Mode::Exclusive, Way::Try, Duration::ZERO, End::Release).await;
            }
            return;
        }
        while !self.process.stops.load(SeqCst) {
            let idle = if self.random.u8(..4) == 0 { 1..60 } else { 0..2 };
            if !self.process.work.is_dense || self.random.u8(..16) == 0 {
                pause(between(&mut self.random, idle)).await;
            }
            if self.can_hand_over() && self.random.u8(..64) == 0 {
                self.meddle().await;
            }
            match role {
                Role::Holder if self.random.u8(..4) == 0 => self.campaign().await,
                Role::Holder => self.long_section().await,
                _ => self.section().await,
            }
        }
    }

    /// Adopts a hold that another process has left, or breaks one.
    async fn meddle(&mut self) {
        if self.random.u8(..4) > 0 {
            let lasts = between(&mut self.random, 0..100);
            return self.adopt(lasts).await;
        }
        let names: Vec<&str> = BUSY.into_iter().chain(RARE).chain(LONG).collect();
        let name = names[self.random.usize(..names.len())];
        self.break_lock(name).await;
    }

    async fn long_section(&mut self) {
        let name = LONG[self.random.usize(..LONG.len())];
        let (lasts, end) = self.long_hold();
        self.hold(name, Mode::Exclusive, Way::Wait, lasts, end).await;
    }

    /// Draws the length of a long hold, and its end.
    fn long_hold(&mut self) -> (Duration, End) {
        let lasts = between(&mut self.random, 50..4000);
        (lasts, if self.random.bool() { End::Release } else { End::Drop })
    }

    async fn section(&mut self) {
        let modes = self.process.locks.capabilities().modes;
        let outlasts = self.process.work.outlasts;
        let random = &mut self.random;
        let is_dense = self.process.work.is_dense && random.u8(..16) > 0;
        let is_rare = random.u8(..4) == 0;
        let name = match (is_dense, is_rare) {
            (true, _) => many(random.usize(..MANY)),
            (false, true) => RARE[random.usize(..RARE.len())].to_owned(),
            (false, false) => BUSY[random.usize(..BUSY.len())].to_owned(),
        };
        let is_shared = random.u8(..3) == 0 && modes.contains(Mode::Shared);
        let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
        let way = match random.u8(..12) {
            0 => Way::Try,
            1 => Way::Outlast(OUTAGE),
            // Otherwise most clients wait for a lock when the store becomes unavailable.
            2..=4 if outlasts => Way::Outlast(OUTAGE),
            2..=7 => Way::Wait,
            8 | 9 => Way::WaitFor(between(random, 1..1500)),
            _ => Way::Drop(random.u32(0..12), between(random, 1..300)),
        };
        // The long ones are rare, because all others wait for them.
        let lasts = match random.u16(..400) {
            _ if is_dense => Duration::ZERO,
            0 => between(random, 300..2500),
            1..=40 => between(random, 2..40),
            _ => between(random, 0..2),
        };
        let end = match random.u16(..1000) {
            0..=499 => End::Release,
            500..=649 => End::DropRelease,
            650 if !self.process.stops.load(SeqCst) => End::LeaveToExpire,
            651..=660 if !self.process.stops.load(SeqCst) => End::ReleaseAfter(between(random, 1..100)),
            _ => End::Drop,
        };
        self.hold(&name, mode, way, lasts, end).await;
    }

    /// Acquires, holds and releases the lock, by a request with an owner of its own.
    async fn hold(&mut self, name: &str, mode: Mode, way: Way, lasts: Duration, end: End) {
        let owner = self.new_owner();
        self.request(&owner, (name, mode), way, lasts, end).await;
        self.ended(&owner);
    }

    fn new_owner(&mut self) -> OwnerId {
        self.requests += 1;
        OwnerId::sanitized(&format!("{}-{}:{}", self.name, self.requests, id()))
    }

    /// Notes that all requests of this owner have ended, and their holds.
    fn ended(&self, owner: &OwnerId) {
        self.process.files.write(4, format_args!("{} {owner}", now().as_nanos()));
    }

    async fn request(
        &mut self,
        owner: &OwnerId,
        (name, mode): (&str, Mode),
        way: Way,
        lasts: Duration,
        end: End,
    ) {
        let process = self.process.clone();
        let progress = Progress::default();
        let recipe =
            if has_recipes(name) { Recipe::draw_with_slots(&mut self.random, mode) } else { Recipe::Lock };
        let mut wanted = recipe.wanted(&process.locks, name, mode).owner(owner);
        let (short, long) = process.work.leases;
        if short != long {
            // A lost hold needs a fault that is longer than its lease.
            let is_long = !LONG.contains(&name) && self.random.bool();
            let lease = if is_long { long } else { short };
            wanted = wanted.ttl(Duration::from_millis(lease));
        }
        // The position is counted at each claim, which costs time.
        // The queue of a slot begins before the one that is shown.
        let is_watched = self.random.u8(..4) == 0
            && matches!(way, Way::Wait | Way::WaitFor(_))
            && !matches!(recipe, Recipe::Slot(_));
        if is_watched {
            wanted = wanted.progress(&progress);
        }
        let mut attempt = process.recorder.invoke(recipe.name_of_lock(name), &self.name, mode);
        let entry = (name.to_owned(), self.name.clone(), now().as_nanos());
        let has_limit = !matches!(way, Way::Wait);
        if !has_limit {
            lock(&process.waiting).insert(entry.clone());
        }
        let acquiring = acquire(wanted, way);
        let outcome =
            if is_watched { watch(acquiring, &progress, &mut attempt).await } else { acquiring.await };
        lock(&process.waiting).remove(&entry);
        match outcome {
            Ok(Some(held)) => self.held(held, attempt, lasts, end).await,
            Ok(None) => {}
            Err(error) => {
                // One with a time limit ends then, also while the store is unavailable.
                let may_end = match way {
                    Way::Try | Way::WaitFor(_) => true,
                    Way::Outlast(_) => false,
                    _ => !process.work.outlasts,
                };
                if !(error.is_not_acquired() || may_end && error.is_temporary()) {
                    process.files.error(&self.name, &error);
                }
                pause(between(&mut self.random, 5..50)).await;
            }
        }
    }

    async fn held(&mut self, held: Held, attempt: Attempt, lasts: Duration, end: End) {
        let (process, guard) = (self.process.clone(), held.guard());
        let mut hold = attempt.acquired(guard);
        process.files.section(&hold.so_far());
        let until = now() + lasts;
        let mut lost = pin!(guard.lost());
        let lost = loop {
            let renewed = guard.renewed();
            hold.checked(guard);
            tokio::select! {
                biased;
                reason = &mut lost => break Some(reason),
                _ = renewed => {}
                () = SystemClock.sleep_until(until) => break None,
            }
        };
        if let Some(LostReason::Broken(_)) = lost {
            process.files.section(&hold.releasing(guard));
            held.release().await.ok();
            return;
        }
        if lost.is_some() {
            if process.work.bug == Some(ClientBug::SilentLoss) {
                pause(Duration::from_secs(2)).await;
            }
            let deadline = Moment::from_nanos(hold.so_far().deadline);
            return process.files.section(&hold.lost(deadline.min(guard.deadline())));
        }
        let passes_on = self.can_hand_over() && self.random.u8(..) == 0 && !process.stops.load(SeqCst);
        let held = match held {
            Held::Lock(guard) if passes_on => return self.pass_on(guard, hold).await,
            held => held,
        };
        let guard = held.guard();
        let mut section = hold.releasing(guard);
        // After these, the lock is not free at once: it counts as that of a client that has died.
        section.open |= matches!(end, End::LeaveToExpire | End::ReleaseAfter(_));
        process.files.section(&section);
        match finish(held, end, &mut self.random).await {
            // The loss, or a release that the store has not confirmed by the end of the lease.
            Err(error) if !error.is_temporary() && error.lost().is_none() => {
                process.files.error(&self.name, &error);
            }
            _ => {}
        }
    }
}

/// Drives an acquisition, and records the time at which it is known to be in the queue.
async fn watch(
    acquiring: impl Future<Output = Result<Option<Held>, Error>>,
    progress: &Progress,
    attempt: &mut Attempt,
) -> Result<Option<Held>, Error> {
    let mut acquiring = pin!(acquiring);
    while progress.queue_position().is_none() {
        tokio::select! {
            biased;
            outcome = &mut acquiring => return outcome,
            () = pause(Duration::from_millis(2)) => {}
        }
    }
    attempt.queued();
    acquiring.await
}
