//! The servers, processes and proxies of a run, and the application of faults to them.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use polylock_core::sync::lock;

use super::{
    client::Work,
    configuration::{Configuration, Store},
    plan::{Action, Fault, Kind, PROCESSES, Route},
    planted::ClientBug,
};
use crate::{
    clock::{self, now},
    process::Process,
    proxy::{BOTH, Flow, Proxy},
    servers::PrivateServer,
    targets::route,
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
    /// The time at which all was as before.
    pub to: u64,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)
    }
}

/// The programs of a run.
#[derive(Debug)]
pub struct Site {
    /// The store.
    pub store: Store,
    /// The URL without proxies.
    pub url: String,
    worker: PathBuf,
    work: Work,
    processes: Vec<Mutex<Member>>,
    /// The proxies of each process, one for each server.
    proxies: Vec<Vec<Proxy>>,
    /// Each server has one fault at a time.
    servers: Vec<Mutex<()>>,
    /// One server is down at a time.
    killing: Mutex<()>,
    applied: Mutex<Vec<Applied>>,
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
    /// Starts the processes of a run on `store`, each behind its own proxies. Their histories are written in `directory`.
    ///
    /// # Panics
    /// If a process does not open the store.
    #[must_use]
    pub fn start(
        configuration: &Configuration,
        store: Store,
        directory: &Path,
        seed: u64,
        clients: usize,
        bug: Option<ClientBug>,
        worker: &Path,
    ) -> Self {
        let url = configuration.url(&store);
        let work = Work {
            url: url.clone(),
            directory: directory.to_owned(),
            name: String::new(),
            seed,
            clients,
            leases: configuration.leases,
            bug,
        };
        let mut site = Self {
            store,
            url,
            worker: worker.to_owned(),
            work,
            processes: Vec::new(),
            proxies: Vec::new(),
            servers: Vec::new(),
            killing: Mutex::default(),
            applied: Mutex::default(),
            lives: AtomicU64::default(),
        };
        site.servers = site.all().iter().map(|_| Mutex::default()).collect();
        for number in 0..PROCESSES {
            let (proxies, url) = route(site.all(), &site.url);
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
        match &self.store {
            Store::File(_) => &[],
            Store::Servers(own) => own.servers.all(),
        }
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

    fn launch(&self, number: usize, url: &str) -> Process {
        let life = self.lives.fetch_add(1, Relaxed);
        let name = format!("p{number}.{life}");
        let seed = self.work.seed.wrapping_mul(1000).wrapping_add(life);
        Process::start(
            &self.worker,
            Work { url: url.to_owned(), name, seed, ..self.work.clone() }.arguments(),
        )
    }

    /// Applies a fault, and ends it after its time. Returns when all is as before.
    pub fn apply(&self, fault: &Fault) {
        let wait = || clock::within(fault.lasts, || false);
        let from = match fault.action {
            Action::StopClient(process) => {
                let member = lock(&self.processes[process]);
                let from = now().as_nanos();
                member.process.stop();
                wait();
                member.process.resume();
                from
            }
            Action::KillClient(process) => {
                let mut member = lock(&self.processes[process]);
                let from = now().as_nanos();
                member.process.kill();
                wait();
                member.process = self.launch(member.number, &member.url);
                member.wait_until_open();
                from
            }
            Action::StopServers { first, count } => {
                let mut chosen: Vec<usize> =
                    (first..first + count).map(|server| server % self.servers.len()).collect();
                // In one order, so that two faults do not wait for each other.
                chosen.sort_unstable();
                let _turns: Vec<_> = chosen.iter().map(|server| lock(&self.servers[*server])).collect();
                let from = now().as_nanos();
                chosen.iter().for_each(|server| self.all()[*server].freeze());
                wait();
                chosen.iter().for_each(|server| self.all()[*server].thaw());
                from
            }
            Action::KillServer(server) => {
                let _killing = lock(&self.killing);
                let _turn = lock(&self.servers[server]);
                let from = now().as_nanos();
                self.all()[server].kill();
                wait();
                self.all()[server].restart();
                from
            }
            Action::Flow(route, way, flow) => {
                let (proxy, from) = (self.proxy(route), now().as_nanos());
                proxy.set(way, flow);
                wait();
                proxy.set(way, Flow::Pass);
                from
            }
            Action::Cut(route, end) => {
                let (proxy, from) = (self.proxy(route), now().as_nanos());
                proxy.refuse(true);
                proxy.cut(end);
                wait();
                proxy.refuse(false);
                from
            }
            Action::Late(route, way) => {
                let (proxy, from) = (self.proxy(route), now().as_nanos());
                proxy.set_existing(way, Flow::Hold);
                wait();
                proxy.set_existing(way, Flow::Pass);
                from
            }
            Action::One(route, back, way, flow) => {
                let (proxy, from) = (self.proxy(route), now().as_nanos());
                let newest = proxy.counts().connections;
                proxy.set_one(newest.saturating_sub(back).max(1), way, flow);
                wait();
                proxy.set(way, Flow::Pass);
                from
            }
            Action::Crowd(process, count) => {
                let (mut member, from) = (lock(&self.processes[process]), now().as_nanos());
                member.process.send_line(&format!("crowd {count}"));
                from
            }
        };
        lock(&self.applied).push(Applied { action: fault.action, from, to: now().as_nanos() });
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
        let mut lines = Vec::new();
        for member in &self.processes {
            let mut member = lock(member);
            loop {
                let line = member.process.next_line(patience);
                let is_last = line.as_deref().is_none_or(|line| line == "done" || line == "busy");
                lines.push(line.unwrap_or_else(|| "silent".to_owned()));
                if is_last {
                    break;
                }
            }
        }
        lines
    }
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
