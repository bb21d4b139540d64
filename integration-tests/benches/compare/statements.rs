//! How many statements the servers receive: for a pair, for an acquisition that many want, and while many wait.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Locks, Order};
use polylock_integration_tests::{
    clock::{now, pause, until},
    proxy::Proxy,
    servers::{self, Server},
};
use redis::InfoDict;
use sqlx::{ConnectOptions, Connection, Row, mysql::MySqlConnectOptions, postgres::PgConnectOptions};

use crate::{
    Flavour,
    report::{Cell, Report},
    setups::Setup,
};

const PAIRS: u32 = 200;
const TASKS: u32 = 64;
const DURATION: Duration = Duration::from_secs(3);

/// What the clients of a server have sent to it.
pub(crate) enum Counter {
    /// Transactions, each of which is a statement of ours. A session reports them when it has been idle for a while.
    Postgres(&'static Server),
    /// Statements.
    MariaDb(&'static Server),
    /// Scripts and pings, at each of the servers.
    Redis(Vec<&'static Server>),
    /// Packets, pings included.
    ZooKeeper(&'static Server),
    /// HTTP requests.
    Azure(Proxy),
}

impl Counter {
    /// How many each server has received, on average.
    async fn sent(&self) -> u64 {
        match self {
            Self::Postgres(server) => {
                // The longest that an idle session keeps its counts to itself.
                pause(Duration::from_secs(11)).await;
                let mut connection =
                    server.url().parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
                let sql = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database";
                let sent: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
                connection.close().await.unwrap();
                sent.unsigned_abs()
            }
            Self::MariaDb(server) => {
                let options = server.url().parse::<MySqlConnectOptions>().unwrap();
                let mut connection = options.connect().await.unwrap();
                let row =
                    sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Questions'").fetch_one(&mut connection).await;
                let sent: String = row.unwrap().get(1);
                connection.close().await.unwrap();
                sent.parse().unwrap()
            }
            Self::Redis(nodes) => {
                let mut sent = 0;
                for node in nodes {
                    let client = redis::Client::open(node.url()).unwrap();
                    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
                    let mut info = redis::cmd("INFO");
                    let stats: InfoDict =
                        info.arg("commandstats").query_async(&mut connection).await.unwrap();
                    let calls = |name: &str| -> u64 {
                        let stat: Option<String> = stats.get(&format!("cmdstat_{name}"));
                        let calls = stat
                            .and_then(|stat| stat.strip_prefix("calls=")?.split(',').next()?.parse().ok());
                        calls.unwrap_or(0)
                    };
                    sent += ["evalsha", "eval", "fcall", "ping"].map(calls).iter().sum::<u64>();
                }
                sent / nodes.len() as u64
            }
            Self::ZooKeeper(server) => servers::zookeeper::packets(server).await,
            Self::Azure(proxy) => proxy.counts().requests,
        }
    }
}

/// Prints the table.
pub(crate) fn run(setups: &[Setup], report: &mut Report) {
    let title = format!(
        "Statements that each server receives: transactions in PostgreSQL, statements in MariaDB, scripts and pings in Redis, packets in \
         ZooKeeper, requests in Azure; contended by {TASKS} tasks for {DURATION:?}, and while {TASKS} tasks wait"
    );
    let columns = &[
        "store",
        "durability",
        "uncontended pair",
        "contended acquisition",
        "all waiters, a second",
        "one waiter, a second",
    ];
    report.begin("statements", &title, columns);
    for setup in setups {
        let Some(counted) = Flavour::MultiThread.run(count(*setup)) else { continue };
        let (store, durability) = setup.names();
        let mut row = vec![Cell::text(store), Cell::text(durability)];
        row.extend(counted.map(|number| Cell::number(number, 2)));
        report.row(row);
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
async fn count(setup: Setup) -> Option<[f64; 4]> {
    let (_spot, url) = setup.open().await;
    let (counter, url) = setup.counter(url)?;
    let locks = Locks::connect(&url).await.unwrap();
    let pair = async |locks: &Locks| locks.lock("bench").acquire().await.unwrap().release().await.unwrap();
    pair(&locks).await;
    let before = counter.sent().await;
    for _ in 0..PAIRS {
        pair(&locks).await;
    }
    let of_pairs = counter.sent().await - before;

    let (before, began) = (counter.sent().await, now());
    let end = began + DURATION;
    let tasks = (0..TASKS).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut acquired = 0;
            while now() < end {
                locks.lock("bench").acquire().await.unwrap().release().await.unwrap();
                acquired += 1;
            }
            acquired
        })
    });
    let acquired: u64 = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    let contended = counter.sent().await - before;
    let contended_for = now().since(began).as_secs_f64();

    let guard = locks.lock("bench").acquire().await.unwrap();
    let waiters: Vec<_> = (0..TASKS).map(|_| tokio::spawn(locks.lock("bench").acquire())).collect();
    // A store without a queue shows no waiters, or one of each client.
    if locks.capabilities().order == Order::Fifo {
        let queued =
            async || locks.inspect("bench").await.is_ok_and(|status| status.waiters.len() == TASKS as usize);
        until("they wait", queued).await;
    }
    let (before, began) = (counter.sent().await, now());
    pause(DURATION).await;
    let waited = counter.sent().await - before;
    let seconds = now().since(began).as_secs_f64();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    guard.release().await.unwrap();
    let idle = waited as f64 / seconds;
    Some([
        of_pairs as f64 / f64::from(PAIRS),
        // Without what comes with time alone.
        idle.mul_add(-contended_for, contended as f64) / acquired.max(1) as f64,
        idle,
        idle / f64::from(TASKS),
    ])
}
