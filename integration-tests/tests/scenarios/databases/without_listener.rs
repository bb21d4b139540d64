//! PostgreSQL where no notification arrives: processes query the tables for the locks that others hand to them.

use std::{fs, time::Duration};

use polylock::Locks;
use polylock_bench::Summary;
use polylock_core::{LockName, Mode, Request, SystemClock, Wake, io};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    history::read_all,
    process::Process,
    proxy::{End, Flow, Proxy},
    servers::{PrivateServer, pgbouncer, postgres},
    stores,
};
use polylock_sql::postgres::Config;
use polylock_testkit::history::{self, Rules};
use sqlx::{Connection, Executor, PgConnection};

/// The variable with the duration of the contention in seconds; two by default.
const SECONDS: &str = "POLYLOCK_TEST_POLLING_SECONDS";

/// Two processes with four tasks each, which take one lock again and again and hold it for 2 ms. Prints the rate and the
/// latencies of hand-overs; checks the history, and that `server` has logged no error.
async fn compete(kind: &str, server: &PrivateServer, url: &str) -> Summary {
    let lasts = std::env::var(SECONDS).map_or(2, |seconds| seconds.parse().unwrap());
    let directory = tempfile::TempDir::new().unwrap();
    let history = directory.path().join("history");
    fs::create_dir(&history).unwrap();
    let millis = (lasts * 1000).to_string();
    let arguments = ["contend", url, "n", history.to_str().unwrap(), "4", &millis, "2"];
    let mut workers: Vec<Process> =
        (0..2).map(|_| Process::start(env!("CARGO_BIN_EXE_worker"), arguments)).collect();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("ready")));
    workers.iter_mut().for_each(|worker| worker.send_line("go"));
    for worker in &mut workers {
        let done = worker.next_line(Duration::from_secs(lasts + 30));
        assert_eq!(done.as_deref(), Some("done"), "{worker:?} waits for ever");
        assert!(worker.wait_for_exit().success());
    }
    let sections = read_all(&history);
    assert_eq!(history::check(&sections, Rules::default()), []);
    let flow = Summary::of(&sections);
    println!("{kind}: {flow}");
    let log = server.log();
    assert!(!log.contains("ERROR"), "{log}");
    flow
}

/// A single process is woken by its own releases, so the rate alone does not show that the tables are queried: no waiter
/// waits for the recheck of a second, nor for the pause after a failed query. One of ten may wait longer, because the machine may
/// stand still for a moment.
fn is_steady(flow: &Summary) {
    assert!(flow.to_another > 20, "{flow}");
    assert!(flow.hand_over.at(0.9) < Duration::from_millis(400), "{flow}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_without_a_listener_hand_over_quickly() {
    let server = postgres::start(&[]).unwrap();
    let url = format!("{}?polylock.listen=off", server.url());
    is_steady(&compete("listen=off", &server, &url).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_behind_a_pooler_hand_over_quickly() {
    let server = postgres::start(&[]).unwrap();
    let pooler = pgbouncer::start(&server, &[]).unwrap();
    // A process that waits tries to listen, and must leave no session listening that others get from the pooler.
    let mut others = PgConnection::connect(pooler.url()).await.unwrap();
    let looking = tokio::spawn(async move {
        let mut before = 0;
        loop {
            // The attempt to listen takes a moment, in which the pooler may pass its session on.
            let channels =
                others.fetch_all(sqlx::raw_sql("SELECT pg_listening_channels()")).await.unwrap().len();
            assert!(before == 0 || channels == 0, "the pooler's session listens");
            before = channels;
            pause(Duration::from_millis(20)).await;
        }
    });
    let outcome = compete("PgBouncer", &server, pooler.url()).await;
    assert!(!looking.is_finished(), "see above");
    looking.abort();
    is_steady(&outcome);
}

/// The driver could open another connection before it reports the loss. That may take the whole time limit, and nobody polls meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_listening_connection_wakes_the_waiters_before_another_one_is_open() {
    let namespace = stores::namespace("postgres").await;
    let (proxy, through) = Proxy::in_front_of(namespace.url()).unwrap();
    let through: String = through.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let keys = format!("polylock.listen={through}&polylock.operation_timeout=10m");
    let config = Config::new(&format!("{}&{keys}", namespace.url())).unwrap();
    let store = polylock_sql::postgres::connect(config).await.unwrap();
    let guard = Locks::connect(namespace.url()).await.unwrap().lock("n").acquire().await.unwrap();
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(60));
    let waiting = async move {
        store.backend.claim(&request).await.unwrap();
        // The connection works from now on.
        assert_eq!(store.backend.wait(&request).await.unwrap(), Wake::Stale);
        store.backend.claim(&request).await.unwrap();
        // Another connection is accepted, and its server is silent.
        proxy.set_both(Flow::Hold);
        assert_eq!(proxy.cut(End::Close), 1);
        let wake = SystemClock.before(now() + TIMEOUT, store.backend.wait(&request)).await;
        store.backend.release(&request).await.unwrap();
        wake
    };
    let wake = io::run("postgres", waiting).await.unwrap().expect("the loss wakes the waiter");
    assert_eq!(wake.unwrap(), Wake::Stale);
    guard.release().await.unwrap();
}
