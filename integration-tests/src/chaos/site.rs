//! The servers, processes and proxies of a run, and the application of faults to them.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use polylock_core::sync::lock;

use super::{
    client::Work,
    plan::{Action, Change, Density, Fault, Kind, PROCESSES, Route},
};
use crate::{
    clock::{self, now},
    process::Process,
    proxy::{BOTH, Flow, Proxy},
    servers::{PrivateServer, redis, redlock},
    targets::Own,
};

/// The time in which a process opens the store while faults happen.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// A fault that has happened.
#[derive(Debug, Clone, Copy)]
pub struct Applied {
    /// The fault.
    pub action: Action,
    /// The time at which it began.
    pub from: u64,
    /// The time at which all was as before; the greatest number if the fault has not ended.
    pub to: u64,
}

/// The programs of a run.
#[derive(Debug)]
pub struct Site {
    /// The namespace, and its servers.
    pub own: Own,
    /// The URL without proxies.
    pub url: String,
    worker: PathBuf,
    work: Work,
    density: Density,
    processes: Vec<Mutex<Member>>,
    /// The proxies of each process, one for each server.
    proxies: Vec<Vec<Proxy>>,
    /// Each server has one fault at a time.
    servers: Vec<Mutex<()>>,
    /// One server is down at a time.
    killing: Mutex<()>,
    applied: Mutex<Vec<Applied>>,
    killed: Mutex<Vec<(u32, u64)>>,
    ids: Mutex<Vec<(u32, String)>>,
    lives: AtomicU64,
}

/// A process of clients.
#[derive(Debug)]
struct Member {
    number: usize,
    url: String,
    process: Process,
}

impl Site {
    /// Starts the processes of a run, each behind its own proxies. Each has a part in this work, with a name and a seed of its own.
    ///
    /// # Panics
    /// If a process does not open the store.
    #[must_use]
    pub fn start(own: Own, work: Work, density: Density, worker: &Path) -> Self {
        let mut site = Self {
            own,
            url: work.url.clone(),
            worker: worker.to_owned(),
            work,
            density,
            processes: Vec::new(),
            proxies: Vec::new(),
            servers: Vec::new(),
            killing: Mutex::default(),
            applied: Mutex::default(),
            killed: Mutex::default(),
            ids: Mutex::default(),
            lives: AtomicU64::default(),
        };
        site.servers = site.all().iter().map(|_| Mutex::default()).collect();
        for number in 0..PROCESSES {
            let (proxies, url) = site.own.servers.route(&site.url);
            site.proxies.push(proxies);
            let process = site.launch(number, &url);
            site.processes.push(Mutex::new(Member { number, url, process }));
        }
        for member in &site.processes {
            lock(member).wait_until_open();
        }
        site
    }

    fn all(&self) -> &[PrivateServer] {
        self.own.servers.all()
    }

    /// Returns the number of servers.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Returns the faults that have happened, sorted by time.
    #[must_use]
    pub fn applied(&self) -> Vec<Applied> {
        let mut applied = lock(&self.applied).clone();
        applied.sort_by_key(|fault| fault.from);
        applied
    }

    /// Returns the process ids of killed processes, with the times of the kills.
    #[must_use]
    pub fn killed(&self) -> Vec<(u32, u64)> {
        lock(&self.killed).clone()
    }

    /// Returns the process ids of all processes so far, with their names.
    #[must_use]
    pub fn ids(&self) -> Vec<(u32, String)> {
        lock(&self.ids).clone()
    }

    fn launch(&self, number: usize, url: &str) -> Process {
        let life = self.lives.fetch_add(1, Relaxed);
        let name = format!("p{number}.{life}");
        let seed = self.work.seed.wrapping_mul(1000).wrapping_add(life);
        let is_dense = self.density.concerns(number);
        let work = Work { url: rotated(url, life), name: name.clone(), seed, is_dense, ..self.work.clone() };
        let process = Process::start(&self.worker, work.arguments());
        lock(&self.ids).push((process.id(), name));
        process
    }

    /// Applies a fault, and ends it after its time. Returns when all is as before. Does nothing if the process or a server has a fault
    /// already.
    pub fn apply(&self, fault: &Fault) {
        let during = |begin: &dyn Fn(), end: &dyn Fn()| {
            let entry = self.note_begin(fault.action);
            begin();
            clock::within(fault.lasts, || false);
            end();
            lock(&self.applied)[entry].to = now().as_nanos();
        };
        match fault.action {
            Action::StopClient(process) => {
                let Some(member) = idle(&self.processes[process]) else { return };
                during(&|| member.process.stop(), &|| member.process.resume());
            }
            Action::KillClient(process) => {
                let Some(member) = idle(&self.processes[process]).map(RefCell::new) else { return };
                during(
                    &|| {
                        let process = &mut member.borrow_mut().process;
                        lock(&self.killed).push((process.id(), now().as_nanos()));
                        process.kill();
                    },
                    &|| {
                        let mut member = member.borrow_mut();
                        member.process = self.launch(member.number, &member.url);
                        member.wait_until_open();
                    },
                );
            }
            Action::StopServers { first, count } => {
                let chosen: Vec<usize> =
                    (first..first + count).map(|server| server % self.servers.len()).collect();
                let turns: Option<Vec<_>> =
                    chosen.iter().map(|server| idle(&self.servers[*server])).collect();
                let Some(_turns) = turns else { return };
                let all = |signal: fn(&PrivateServer)| {
                    chosen.iter().for_each(|server| signal(&self.all()[*server]));
                };
                during(&|| all(PrivateServer::freeze), &|| all(PrivateServer::thaw));
            }
            Action::KillServer(server) => {
                let Some(_turns) = idle(&self.killing).zip(idle(&self.servers[server])) else { return };
                let server = &self.all()[server];
                during(&|| server.kill(), &|| server.restart());
            }
            Action::Flow(route, way, flow) => {
                let proxy = self.proxy(route);
                during(&|| proxy.set(way, flow), &|| proxy.set(way, Flow::Pass));
            }
            Action::Cut(route, end) => {
                let proxy = self.proxy(route);
                let cut = || {
                    proxy.refuse(true);
                    proxy.cut(end);
                };
                during(&cut, &|| proxy.refuse(false));
            }
            Action::Late(process, server, way) => {
                let processes = process.map_or(0..PROCESSES, |process| process..process + 1);
                let proxies: Vec<_> =
                    processes.map(|process| self.proxy(Route { process, server })).collect();
                let set = |flow| proxies.iter().for_each(|proxy| proxy.set_existing(way, flow));
                during(&|| set(Flow::Hold), &|| set(Flow::Pass));
            }
            Action::One(route, back, way, flow) => {
                let proxy = self.proxy(route);
                let number = proxy.counts().connections.saturating_sub(back).max(1);
                during(&|| proxy.set_one(number, way, flow), &|| proxy.set(way, Flow::Pass));
            }
            Action::FillDisk(server) => {
                let Some(_turn) = idle(&self.servers[server]) else { return };
                let server = &self.all()[server];
                during(&|| server.fill_disk(), &|| server.clear_disk());
            }
            Action::RestoreServer(server) => {
                // Of several servers at the same time: a majority has the votes that one has lost.
                let Some(_turn) = idle(&self.servers[server]) else { return };
                let server = &self.all()[server];
                during(&|| server.save(), &|| server.restore());
            }
            Action::StartOtherwise { server, change } => {
                let Some(_turns) = idle(&self.killing).zip(idle(&self.servers[server])) else { return };
                let own = &self.all()[server];
                match change {
                    Change::Clock(ahead) => during(&|| own.kill(), &|| {
                        own.set_wall_clock(true, ahead);
                        own.restart();
                    }),
                    Change::OldFile => during(&|| redis::end_durability(own), &|| own.restart()),
                    Change::CopyOf(other) => {
                        let Some(_turn) = idle(&self.servers[other]) else { return };
                        during(&|| own.kill(), &|| own.restore_from(&self.all()[other]));
                    }
                }
            }
            Action::SwitchOver(how) => {
                let Some(_turn) = idle(&self.killing) else { return };
                let entry = self.note_begin(fault.action);
                self.own.servers.switch_over(how, &|| {
                    clock::within(fault.lasts, || false);
                });
                lock(&self.applied)[entry].to = now().as_nanos();
                self.own.servers.rejoin();
            }
            Action::StepClock { server, is_ahead, by } => {
                let Some(_turn) = idle(&self.servers[server]) else { return };
                let server = &self.all()[server];
                during(&|| server.set_wall_clock(is_ahead, by), &|| server.reset_wall_clock());
            }
            Action::Crowd(process, count) | Action::Rush(process, count) => {
                let Some(mut member) = idle(&self.processes[process]) else { return };
                let entry = self.note_begin(fault.action);
                member.process.send_line(&format!("{} {count}", fault.action.kind().name()));
                lock(&self.applied)[entry].to = now().as_nanos();
            }
        }
    }

    /// Adds the fault to those that have happened, without an end, and returns its index.
    fn note_begin(&self, action: Action) -> usize {
        let mut applied = lock(&self.applied);
        applied.push(Applied { action, from: now().as_nanos(), to: u64::MAX });
        applied.len() - 1
    }

    fn proxy(&self, route: Route) -> &Proxy {
        &self.proxies[route.process][route.server]
    }

    /// Ends all processes. Returns the lines that they print at the end: `stuck …`, and `done` or `busy`.
    pub fn stop(&self, patience: Duration) -> Vec<String> {
        // After overlapping faults, too.
        for proxy in self.proxies.iter().flatten() {
            BOTH.into_iter().for_each(|way| proxy.set(way, Flow::Pass));
        }
        self.processes.iter().for_each(|member| lock(member).process.send_line("stop"));
        self.processes.iter().flat_map(|member| last_lines(&mut lock(member).process, patience)).collect()
    }

    /// Acquires each lock once, by a new process without proxies. Returns the lines that it prints at the end.
    pub fn sweep(&self, patience: Duration) -> Vec<String> {
        let work = Work { url: self.url.clone(), name: "last".to_owned(), clients: 0, ..self.work.clone() };
        let mut process = Process::start(&self.worker, work.arguments());
        process.expect_line("ready");
        process.send_line("stop");
        last_lines(&mut process, patience)
    }
}

/// Returns the URL with the list of servers in another order, if it has one.
fn rotated(url: &str, by: u64) -> String {
    if !url.starts_with("redlock:") {
        return url.to_owned();
    }
    let mut nodes = redlock::nodes(url);
    let by = usize::try_from(by).unwrap_or(0) % nodes.len();
    nodes.rotate_left(by);
    redlock::url(nodes.iter().map(|node| node.url()))
}

/// Returns the lines of a process up to its last one, or `silent` if it does not print it within `patience`.
fn last_lines(process: &mut Process, patience: Duration) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = process.next_line(patience);
        let is_last = line.as_deref().is_none_or(|line| line == "done" || line == "busy");
        lines.push(line.unwrap_or_else(|| "silent".to_owned()));
        if is_last {
            return lines;
        }
    }
}

/// Returns the lock if nobody has it.
fn idle<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock().ok()
}

impl Member {
    fn wait_until_open(&mut self) {
        let line = self.process.next_line(OPEN_LIMIT);
        assert!(line.as_deref() == Some("ready"), "p{} does not open the store: {line:?}", self.number);
    }
}

/// Returns the number of faults of each kind.
#[must_use]
pub fn count(applied: &[Applied], kind: Kind) -> usize {
    applied.iter().filter(|fault| fault.action.kind() == kind).count()
}
