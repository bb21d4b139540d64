//! Clients of crate `rslock`, or of crate `distributed-lock`, in a run of `chaos` or of `comparison`: see `../README.md`.
#![forbid(unsafe_code)]

mod measure;

use std::{
    collections::BTreeSet,
    env,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use fastrand::Rng;
use rslock::{LockGuard, LockManager};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{sleep, timeout},
};

const BUSY: [&str; 3] = ["orders", "jobs", "cron"];
const RARE: [&str; 4] = ["rare/1", "rare/2", "rare/3", "rare/4"];
const LONG: [&str; 2] = ["leader", "backup"];
const CROWDED: &str = "crowded";
const NO_DEADLINE: u64 = u64::MAX >> 1;

fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

enum Library {
    Rslock(LockManager),
    DistributedLock(RedisLockProvider),
}

enum Hold {
    Rslock(LockGuard),
    DistributedLock(RedisLockHandle),
}

impl Library {
    async fn open(name: &str, servers: &[String], lease: Duration) -> Self {
        if name == "rslock" {
            return Self::Rslock(LockManager::new(servers.to_vec()));
        }
        loop {
            // The defaults with another expiry: a third and 90 % of it.
            let builder = RedisLockProvider::builder().urls(servers).expiry(lease);
            match builder.extension_cadence(lease / 3).min_validity(lease * 9 / 10).build().await {
                Ok(provider) => return Self::DistributedLock(provider),
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Returns the hold, and the validity that is reported. An acquisition that gives up is started again.
    async fn acquire(&self, name: &str, lease: Duration) -> (Hold, Option<Duration>) {
        loop {
            if let Some(held) = self.try_acquire(name, lease).await {
                return held;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn try_acquire(&self, name: &str, lease: Duration) -> Option<(Hold, Option<Duration>)> {
        match self {
            Self::Rslock(manager) => {
                let guard = manager.acquire(name, lease).await.ok()?;
                let validity = Duration::from_millis(guard.lock.validity_time as u64);
                Some((Hold::Rslock(guard), Some(validity)))
            }
            Self::DistributedLock(provider) => {
                let handle = provider.create_lock(name).acquire(None).await.ok()?;
                Some((Hold::DistributedLock(handle), None))
            }
        }
    }
}

impl Hold {
    /// Returns true if the loss is reported within this time.
    async fn is_lost_within(&self, time: Duration) -> bool {
        match self {
            Self::Rslock(_) => {
                sleep(time).await;
                false
            }
            Self::DistributedLock(handle) => {
                let mut lost = handle.lost_token().clone();
                timeout(time, lost.wait_for(|is_lost| *is_lost)).await.is_ok_and(|lost| lost.is_ok())
            }
        }
    }

    async fn release(self) {
        match self {
            Self::Rslock(guard) => guard.release().await,
            // The documentation has no step after a failed release.
            Self::DistributedLock(handle) => drop(handle.release().await),
        }
    }
}

struct Process {
    library: Library,
    name: String,
    seed: u64,
    lease: Duration,
    sections: File,
    stalls: File,
    waiting: Mutex<BTreeSet<(String, String, u64)>>,
    active: AtomicUsize,
    stops: AtomicBool,
}

#[derive(Clone, Copy)]
enum Work {
    Users,
    Once(&'static str),
}

impl Process {
    fn spawn(self: &Arc<Self>, number: u64, work: Work) {
        let process = self.clone();
        self.active.fetch_add(1, SeqCst);
        tokio::spawn(async move {
            let client = format!("{}.{number}", process.name);
            let mut draw = Rng::with_seed(process.seed.wrapping_mul(10_000) + number);
            match work {
                Work::Once(lock) => {
                    process.hold(&client, lock, upto(&mut draw, Duration::from_millis(2))).await
                }
                Work::Users => process.use_locks(&client, number == 0, &mut draw).await,
            }
            process.active.fetch_sub(1, SeqCst);
        });
    }

    async fn use_locks(&self, client: &str, is_holder: bool, draw: &mut Rng) {
        let ms = Duration::from_millis;
        while !self.stops.load(SeqCst) {
            let idle = if draw.u8(..4) == 0 { ms(60) } else { ms(2) };
            sleep(upto(draw, idle)).await;
            let (lock, lasts) = if is_holder {
                (LONG[draw.usize(..2)], ms(50) + upto(draw, self.lease / 2 - ms(50)))
            } else {
                let lock = if draw.u8(..4) == 0 { RARE[draw.usize(..4)] } else { BUSY[draw.usize(..3)] };
                let longest = match draw.u16(..400) {
                    0 => self.lease / 2,
                    1..=40 => ms(40),
                    _ => ms(2),
                };
                (lock, upto(draw, longest))
            };
            self.hold(client, lock, lasts).await;
        }
    }

    async fn hold(&self, client: &str, lock: &str, lasts: Duration) {
        let invoked = now();
        let entry = (lock.to_owned(), client.to_owned(), invoked);
        self.waiting.lock().unwrap().insert(entry.clone());
        let (hold, validity) = self.library.acquire(lock, self.lease).await;
        let acquired = now();
        self.waiting.lock().unwrap().remove(&entry);
        let deadline = validity.map_or(NO_DEADLINE, |validity| acquired + validity.as_nanos() as u64);
        let section = |state, end: &str| {
            let line =
                format!("v1 {state} {lock} {client} exclusive {invoked} - {acquired} - {deadline} {end} -\n");
            (&self.sections).write_all(line.as_bytes()).expect("the history can be written");
        };
        section("open", "- -");
        let is_lost = hold.is_lost_within(lasts).await;
        section("over", &if is_lost { format!("- {}", now()) } else { format!("{} -", now()) });
        hold.release().await;
    }

    fn note_stalls(&self) {
        let mut last = now();
        loop {
            thread::sleep(Duration::from_millis(30));
            let woken = now();
            if woken - last > 300_000_000 {
                (&self.stalls).write_all(format!("{last} {woken}\n").as_bytes()).expect("it can be written");
            }
            last = woken;
        }
    }
}

/// Returns the lines of the standard input.
fn input_lines() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

fn upto(draw: &mut Rng, longest: Duration) -> Duration {
    longest.mul_f64(draw.f64())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [peer, scenario, url, name, directory, seed, clients, short, long, ..] = &arguments[..] else {
        panic!("see ../README.md")
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (_, hosts) = url.split_once("://").expect("a URL");
    let hosts = &hosts[..hosts.find(['/', '?']).unwrap_or(hosts.len())];
    let servers: Vec<String> = hosts.split(',').map(|server| format!("redis://{server}")).collect();
    let create = |kind| File::create_new(Path::new(directory).join(format!("{name}.{kind}")));
    let lease = Duration::from_millis(number(short));
    if scenario == "measure" {
        return measure::run(Library::open(peer, &servers, lease).await, lease).await;
    }
    let process = Arc::new(Process {
        library: Library::open(peer, &servers, lease).await,
        name: name.clone(),
        seed: number(seed),
        lease,
        sections: create("sections")?,
        stalls: create("stalls")?,
        waiting: Mutex::default(),
        active: AtomicUsize::new(0),
        stops: AtomicBool::new(false),
    });
    let noting = process.clone();
    thread::spawn(move || noting.note_stalls());
    println!("ready");
    for client in 0..number(clients) {
        process.spawn(client, Work::Users);
    }
    let mut next = 1000;
    let mut once = |lock| {
        process.spawn(next, Work::Once(lock));
        next += 1;
    };
    if clients == "0" {
        BUSY.into_iter().chain(RARE).chain(LONG).chain([CROWDED]).for_each(&mut once);
    }
    let mut lines = input_lines();
    while let Some(count) = lines.recv().await.as_deref().and_then(|line| line.strip_prefix("crowd ")) {
        (0..number(count)).for_each(|_| once(CROWDED));
    }
    process.stops.store(true, SeqCst);
    let limit = now() + 5 * number(long) * 1_000_000;
    while process.active.load(SeqCst) > 0 && now() < limit {
        sleep(Duration::from_millis(5)).await;
    }
    for (lock, client, invoked) in process.waiting.lock().unwrap().iter() {
        println!("stuck {lock} {client} {invoked}");
    }
    println!("done");
    std::process::exit(0)
}
