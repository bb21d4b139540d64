//! The parts of the benchmark on one store.

use std::time::Duration;

use polylock::{Scope, core::Locks};

use crate::{
    Children, Kills, Measured, Outcome, Part, RawClient, Result, Settings, Subject, Summary, Times,
    contended, handover, held, kill, own_locks, raw,
    results::{Contended, HandOver, Held, OwnLocks, Uncontended, Waiters},
    times::now,
    uncontended::{self, Until},
    waiters,
};

/// The processes that compete for one lock.
const PROCESSES: usize = 4;
/// The slices of [`own_locks`] that count.
const SLICES: u32 = 8;
/// The largest number of hand-overs of each kind.
const HANDOVERS: u64 = 2000;
/// The range of the TTLs of locks that are only held, and of those with holders that are killed.
const TTLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(6));

/// An event of a run.
#[derive(Debug)]
pub enum Event {
    /// The store was opened.
    Opened {
        /// The backend.
        backend: &'static str,
        /// The statements of the raw driver, or the reason why there is none.
        raw: Result<&'static str, String>,
    },
    /// A part begins.
    Begun {
        /// The part.
        part: Part,
        /// The time that it takes at least, about.
        planned: Duration,
    },
    /// A part has ended.
    Ended {
        /// The part.
        part: Part,
        /// Its outcome.
        outcome: Outcome,
    },
}

/// The store in a run.
struct Context<'a> {
    subject: &'a Subject,
    children: &'a Children,
    settings: &'a Settings,
    raw: Option<Box<dyn RawClient>>,
}

/// Measures the parts of `settings` on a store, one after the other, and passes each event to `observe`.
///
/// It runs tasks on the caller's runtime: on one with several threads, the numbers are those of a program with such a runtime.
///
/// # Errors
/// If the store can't be opened. The failure of a part is its outcome, and the next part runs nevertheless.
///
/// # Cancel safety
/// Dropping the future ends the tasks and kills the child processes. [`Subject::clean_up`] deletes what is left.
pub async fn measure(
    subject: &Subject,
    children: &Children,
    settings: &Settings,
    observe: &(dyn Fn(Event) + Send + Sync),
) -> Result<()> {
    let locks = subject.open(&subject.create_namespace(), None).await?;
    let raw = subject.open_raw().await;
    let described = match &raw {
        Ok(Some(raw)) => Ok(raw.description()),
        Ok(None) => Err("this store has no raw driver to compare with".to_owned()),
        Err(error) => Err(error.chain()),
    };
    let (backend, scope) = (locks.capabilities().backend, locks.capabilities().scope);
    observe(Event::Opened { backend, raw: described });
    let mut context = Context { subject, children, settings, raw: raw.ok().flatten() };
    for part in &settings.parts {
        observe(Event::Begun { part: *part, planned: settings.time_of(*part) });
        let outcome = if *part == Part::Kill && scope == Scope::Process {
            Outcome::Skipped("the store is in the memory of one process".to_owned())
        } else {
            match context.part(*part).await {
                Ok(measured) => Outcome::Measured(Box::new(measured)),
                Err(error) => Outcome::Failed(error),
            }
        };
        observe(Event::Ended { part: *part, outcome });
    }
    Ok(())
}

impl Context<'_> {
    async fn part(&mut self, part: Part) -> Result<Measured> {
        let time = self.settings.time_of(part);
        Ok(match part {
            Part::Uncontended => Measured::Uncontended(self.uncontended(time).await?),
            Part::OwnLocks => Measured::OwnLocks(self.own_locks(time).await?),
            Part::HandOver => Measured::HandOver(self.hand_over(time).await?),
            Part::Contended => Measured::Contended(self.contended(time).await?),
            Part::Waiters => Measured::Waiters(self.waiters(time).await?),
            Part::Held => Measured::Held(self.held(time).await?),
            Part::Kill => Measured::Kill(self.kill(time).await?),
        })
    }

    /// Opens a new namespace for a part.
    async fn open(&self) -> Result<(String, Locks)> {
        let namespace = self.subject.create_namespace();
        let locks = self.subject.open(&namespace, None).await?;
        Ok((namespace, locks))
    }

    /// Returns the raw pairs at this time.
    async fn raw_pairs(&mut self) -> Result<Option<Times>> {
        match &mut self.raw {
            Some(raw) => Ok(Some(raw::pairs(&mut **raw).await?)),
            None => Ok(None),
        }
    }

    async fn uncontended(&mut self, time: Duration) -> Result<Uncontended> {
        let (_, locks) = self.open().await?;
        let mut sides = [self.raw.take()];
        let measured = uncontended::measure(&locks, &mut sides, Until::Time(now() + time)).await;
        let [raw] = sides;
        let has_raw = raw.is_some();
        self.raw = raw;
        let mut times = measured?.into_iter();
        let polylock = times.next().unwrap_or_default();
        Ok(Uncontended { polylock, raw: times.next().filter(|_| has_raw) })
    }

    async fn own_locks(&self, time: Duration) -> Result<OwnLocks> {
        let (_, locks) = self.open().await?;
        let tasks = self.settings.contenders;
        // Two more slices do not count.
        let slice = time / (SLICES + 2);
        let [polylock, raw] = own_locks::measure(&locks, self.raw.as_deref(), tasks, SLICES, slice).await?;
        Ok(OwnLocks { tasks, polylock, raw: Some(raw).filter(|raw| !raw.times.is_empty()) })
    }

    async fn hand_over(&mut self, time: Duration) -> Result<HandOver> {
        let (namespace, locks) = self.open().await?;
        let raw = self.raw_pairs().await?;
        let to_task = handover::within_process(&locks, now() + time / 2, HANDOVERS).await?;
        let to_process = if has_processes(&locks) {
            let until = now() + time / 2;
            Some(handover::across_processes(&locks, self.children, &namespace, until, HANDOVERS).await?)
        } else {
            None
        };
        Ok(HandOver { to_task, to_process, raw })
    }

    async fn contended(&mut self, time: Duration) -> Result<Contended> {
        let (namespace, locks) = self.open().await?;
        let tasks = self.settings.contenders;
        let mut raw = self.raw_pairs().await?;
        let one_process = contended::in_process(std::slice::from_ref(&locks), tasks, time / 2).await?;
        let one_process = Summary::of_correct(&one_process)?;
        let processes = if has_processes(&locks) {
            let processes = PROCESSES.min(tasks);
            let shape = (processes, tasks / processes);
            let sections = contended::across_processes(self.children, &namespace, shape, time / 2).await?;
            Some((processes, Summary::of_correct(&sections)?))
        } else {
            None
        };
        if let (Some(raw), Some(after)) = (&mut raw, self.raw_pairs().await?) {
            raw.add(&after);
        }
        Ok(Contended { tasks, one_process, processes, raw })
    }

    async fn waiters(&self, time: Duration) -> Result<Waiters> {
        let (_, locks) = self.open().await?;
        let count = self.settings.waiters;
        let pairs_before = waiters::pairs(&locks, time / 4).await?;
        let queue = waiters::Waiters::queue(&locks, count).await?;
        let (queued_in, pairs_waiting) = (queue.queued_in, queue.idle(time / 4).await?);
        let drained = queue.drain().await?;
        Ok(Waiters { count, queued_in, pairs_before, pairs_waiting, drained })
    }

    async fn held(&self, time: Duration) -> Result<Held> {
        let (_, locks) = self.open().await?;
        let count = self.settings.held;
        // At least two renewals of each.
        let ttl = locks.capabilities().nearest_ttl(time.clamp(TTLS.0, TTLS.1));
        let held = held::Held::acquire(&locks, count, ttl).await?;
        let (cpu, began) = (held::own_cpu(), now());
        let watched = held.watch(time).await;
        let (held_for, cpu_now) = (now().since(began), held::own_cpu());
        let cpu = cpu.zip(cpu_now).map(|(before, after)| after.saturating_sub(before));
        let (acquired_in, bytes_each) = (held.acquired_in, held.bytes_each);
        let released = held.release().await;
        Ok(Held { count, ttl, acquired_in, held_for, watched, cpu, bytes_each, released })
    }

    async fn kill(&self, time: Duration) -> Result<Kills> {
        let namespace = self.subject.create_namespace();
        // The kills themselves take a third of a TTL, and the start of the processes some time.
        let ttl = (time * 3 / 4).clamp(TTLS.0, TTLS.1);
        let session = self.subject.has_sessions().then_some(ttl);
        let locks = self.subject.open(&namespace, session).await?;
        let lease = locks.capabilities().nearest_ttl(ttl);
        let mut kills =
            kill::measure(&locks, self.children, &namespace, self.settings.kills, lease, session).await?;
        if session.is_some() {
            // The session decides. Its longest lease is half of the timeout that the servers have granted.
            kills.ttl = ttl.max(*locks.capabilities().ttl.end() * 2);
        }
        Ok(kills)
    }
}

fn has_processes(locks: &Locks) -> bool {
    locks.capabilities().scope != Scope::Process
}
