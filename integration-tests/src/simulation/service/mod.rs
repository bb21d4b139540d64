//! Two lock services in front of one store, the [queue server](super::server). The clients' processes use the real store `polylock+http`.
//!
//! Each service is a process of its own, with a clock of its own: it runs the real routes of `polylock-server`. The network between the services and the
//! store is another one than that of the clients.
//!
//! | module | part |
//! |---|---|
//! | [`node`] | one service: its process and its connections |
//! | [`end`] | the service's end of a connection |
//! | [`message`] | the messages of the clients, as they appear on a connection |
//! | [`given_up`] | the promise that nothing is carried out after its client has given it up |

pub mod end;
pub mod given_up;
pub mod message;
pub mod node;

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, FencingToken, LockName, SystemClock, simulation::Connecting};
use polylock_http::Config;

use self::{given_up::GivenUp, node::Node};
use super::{
    live_entry::LiveEntry,
    network::{Late, Network, Way, nanos},
    plan::{FAULTS_END, Plan},
    server::Server,
    servers::{Events, Life, Opening, Servers},
    socket::Wires,
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// The time for which a machine sends bytes again.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// The longest times of messages between a service and the store, in milliseconds: each link has one of them.
const LATENCIES: [u64; 3] = [1, 2, 10];

/// The messages between a service and the store that are late.
const LATE: Late = Late { per_mille: 10, ms: 100..3000 };

/// What makes the network of the store another one than that of the clients.
const OF_STORE: u64 = 0x5e17_1ce5;

/// The services of a run, and their store.
#[derive(Debug)]
pub struct ServiceServers {
    wires: Arc<Wires>,
    store: Arc<Server>,
    /// The network between the services and the store; the links are those of the services.
    network: Arc<Network>,
    nodes: Vec<Arc<Node>>,
    given_up: Arc<GivenUp>,
}

impl ServiceServers {
    /// Creates the services of `plan`, which are up.
    #[must_use]
    pub fn new(
        plan: &Plan,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        let noisy_until = if plan.is_noisy { nanos(plan.time(FAULTS_END)) } else { 0 };
        let seed = plan.seed ^ OF_STORE;
        let inner = Network::new(time.clone(), seed, noisy_until, plan.servers, LATENCIES, LATE);
        let store = Server::new(plan, (0, "server"), (time.clone(), inner.clone(), timeline.clone()));
        let given_up = Arc::<GivenUp>::default();
        let node = |number| {
            let parts = (time.clone(), timeline.clone(), store.clone(), given_up.clone());
            Node::new(number, plan, parts)
        };
        let nodes = (0..plan.servers).map(node).collect();
        let wires = Wires::new(plan.seed, time, network, nanos(LONGEST_DELAY));
        Arc::new(Self { wires, store, network: inner, nodes, given_up })
    }
}

impl Servers for ServiceServers {
    fn open(self: Arc<Self>, _: Life) -> Opening {
        Box::pin(async move {
            // A service without authentication has no host name. The ports are the numbers of the servers.
            let hosts: Vec<String> =
                self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
            let url = format!("polylock+http://{}", hosts.join(","));
            loop {
                let config = Config::new(&url).unwrap_or_else(|error| unreachable!("{error}"));
                match polylock_http::connect(config).await {
                    Ok(store) => return store,
                    Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
                }
                SystemClock.sleep_until(SystemClock.now() + REOPEN).await;
            }
        })
    }

    fn connect(&self, process: Life, address: &str) -> Connecting {
        let node = self.nodes.iter().position(|node| address.ends_with(&format!(":{}", node.port())));
        let name = node.map_or_else(|| address.to_owned(), |number| format!("n{number}"));
        self.wires.connect(process, &name, &self.nodes)
    }

    fn end_process(&self, process: usize) {
        self.wires.end_process(process);
    }

    fn stick(&self, process: usize, server: usize, until: u64) {
        self.wires.stick(process, server, until);
    }

    fn refuse(&self, _: usize, until: u64) {
        self.store.refuse(0, until);
    }

    fn pause(&self, server: usize) {
        self.nodes[server].pause();
    }

    fn resume(&self, server: usize) {
        self.nodes[server].resume();
    }

    fn crash(&self, server: usize) {
        self.nodes[server].crash();
    }

    fn restart(&self, server: usize) {
        self.nodes[server].restart();
    }

    fn cut(&self, server: usize, until: u64) {
        self.network.cut(server, Way::There, until);
        self.network.cut(server, Way::Back, until);
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        self.store.expires(name, token)
    }

    fn live(&self) -> Vec<LiveEntry> {
        self.store.live()
    }

    fn violations(&self, _: &Events<'_>) -> Vec<Violation> {
        let mut violations = self.store.late();
        violations.extend(self.given_up.violations(self.store.executed()));
        violations
    }
}
