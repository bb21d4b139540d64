//! Behaviour that only PostgreSQL has.

mod settings;

use std::{sync::Mutex, time::Duration};

use polylock::Locks;
use polylock_core::{ClaimOutcome, LockName, Mode, Request, SystemClock, Wake, io};
use polylock_integration_tests::{
    alone,
    clock::{self, now, pause},
    load::{self, Load},
    servers::{Server, pgbouncer, postgres},
    stores, trace,
};
use polylock_sql::postgres::{Config, schema};
use polylock_testkit::{Target, history};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

fn url(server: &Server, more: &str) -> String {
    let separator = if server.url().contains('?') { '&' } else { '?' };
    format!("{}{separator}polylock.namespace={}{more}", server.url(), server.name())
}

async fn connection(server: &Server) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

/// The first column of the only row, as a number.
async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    row.get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_closed_under_load_cause_no_violation() {
    let server = postgres().unwrap();
    let url = url(server, "&polylock.ttl=5s&application_name=ended");
    let mut killer = connection(server).await;
    let outcome = Load { duration: Duration::from_secs(6), min_holds: 50, ..Load::default() }
        .run(&url, async {
            let until = now() + Duration::from_secs(5);
            let mut ended = 0;
            while now() < until {
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'ended'";
                ended += number(&mut killer, sql).await;
                pause(Duration::from_millis(50)).await;
            }
            assert!(ended > 20, "only {ended} connections were closed");
        })
        .await;
    outcome.assert_consistent();
    // A broken connection is no loss: another one renews.
    assert_eq!(outcome.losses, 0);
    assert!(outcome.sections.len() > 20, "only {} sections", outcome.sections.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_under_every_default_isolation() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let server = postgres::start(&[&format!("default_transaction_isolation={isolation}")]).unwrap();
        let outcome = Load { min_holds: 500, ..Load::default() }.run(&url(&server, ""), async {}).await;
        outcome.assert_consistent();
        assert!(outcome.sections.len() > 500, "{isolation}");
        assert_eq!((outcome.failures, outcome.losses), (0, 0), "{isolation}");
    }
}

/// Replaces the claim function of the tables of `url` by the output of `change`.
async fn plant(server: &Server, url: &str, change: impl Fn(&str) -> String) {
    // The tables first.
    drop(Locks::connect(url).await.unwrap());
    let ddl = schema(&Config::new(url).unwrap()).unwrap();
    let claim = ddl.split("CREATE OR REPLACE FUNCTION").find(|part| part.contains("_claim_4(")).unwrap();
    let planted = change(claim);
    assert_ne!(planted, claim, "nothing was planted");
    let sql = format!("CREATE OR REPLACE FUNCTION{planted}");
    connection(server).await.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_token_drawn_before_the_lock_is_caught() {
    let server = postgres().unwrap();
    // Programs that stall before they have the lock, which does a sound claim no harm ...
    const STALL: &str = "PERFORM pg_sleep(random() * 0.02);\n    PERFORM pg_advisory_xact_lock";
    let stalled = |claim: &str| claim.replace("PERFORM pg_advisory_xact_lock", STALL);
    let sound = url(server, "");
    plant(server, &sound, stalled).await;
    let outcome = Load { min_holds: 50, ..load::tries_of_writers() }.run(&sound, async {}).await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > 50);

    // ... and one that has drawn its token by then.
    let naive = url(server, "");
    plant(server, &naive, |claim| {
        let draw = claim.find("nextval(").unwrap();
        let draw = &claim[draw..=draw + claim[draw..].find(')').unwrap()];
        let early = format!("DECLARE\n    v_naive bigint := {draw};");
        stalled(claim).replacen("DECLARE", &early, 1).replace(&format!("VALUES ({draw}"), "VALUES (v_naive")
    })
    .await;
    let outcome = Load { min_holds: 200, ..load::tries_of_writers() }.run(&naive, async {}).await;
    let found = history::token_regressions(&outcome.sections);
    println!("{} regressions in {} sections", found.len(), outcome.sections.len());
    assert!(!found.is_empty(), "the planted bug was not caught");
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_claim_without_its_critical_section_is_caught() {
    let server = postgres().unwrap();
    let load = Load { min_holds: 200, ..load::tries_of_readers_and_writers() };
    // Claims that stall between the last check and the grant, which is harmless for a correct claim ...
    let stalled = |claim: &str| {
        let (looks, takes) = claim.split_at(claim.rfind("INSERT INTO").unwrap());
        format!("{looks}PERFORM pg_sleep(random() * 0.02);\n    {takes}")
    };
    let sound = url(server, "");
    plant(server, &sound, stalled).await;
    let outcome = load.run(&sound, async {}).await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > 50);

    // ... and the same without the lock on the name.
    let naive = url(server, "");
    plant(server, &naive, |claim| {
        stalled(claim)
            .replace("PERFORM pg_advisory_xact_lock", "PERFORM hashtext('') + length")
            .replace("length(hashtextextended(", "length(text(hashtextextended(")
            .replace(", 0));\n    v_now", ", 0)));\n    v_now")
    })
    .await;
    // The index still refuses a second exclusive holder, but not a reader beside a writer.
    let outcome = load.run(&naive, async {}).await;
    let found = history::overlaps(&outcome.sections);
    println!(
        "{} overlaps in {} sections, {} failures",
        found.len(),
        outcome.sections.len(),
        outcome.failures
    );
    assert!(!found.is_empty(), "the planted bug was not caught");
}

/// Returns the time from a release of `name` in one store to the grant to a waiter in the other.
async fn hand_over(holder: &Locks, waiter: &Locks, name: &str) -> Duration {
    let guard = holder.lock(name).acquire().await.unwrap();
    let waits = waiter.lock(name).acquire();
    let waiting = tokio::spawn(waits);
    clock::until("it waits", async || holder.inspect(name).await.unwrap().waiters.len() == 1).await;
    let released = now();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    let took = now().since(released);
    guard.release().await.unwrap();
    took
}

const LISTENERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND application_name = ";

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_reconnects_and_no_waiter_is_lost_in_between() {
    let server = postgres().unwrap();
    let listens = format!("{LISTENERS}'listens'");
    let (here, there) = (url(server, "&application_name=listens"), "");
    let (holder, waiter) = (Locks::connect(&here).await.unwrap(), Locks::connect(&here).await.unwrap());
    let mut observer = connection(server).await;
    println!("first {:?}{there}", hand_over(&holder, &waiter, "a").await);
    // The holder listens too, for breaks.
    clock::until("both listen", async || number(&mut connection(server).await, &listens).await == 2).await;
    println!("listening {:?}", hand_over(&holder, &waiter, "a").await);

    let guard = holder.lock("b").acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("b").acquire());
    clock::until("it waits", async || holder.inspect("b").await.unwrap().waiters.len() == 1).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE query LIKE 'LISTEN%' AND application_name = 'listens'";
    assert_eq!(number(&mut observer, end).await, 2);
    guard.release().await.unwrap();
    let released = now();
    drop(waiting.await.unwrap().unwrap());
    let took = now().since(released);
    // A recheck follows within a second, on a busy machine somewhat later.
    assert!(took < Duration::from_millis(2500), "lost for {took:?}");

    let guard = holder.lock("c").acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("c").acquire());
    clock::until("they listen again", async || number(&mut connection(server).await, &listens).await == 2)
        .await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_among_64_contenders_costs_a_constant_number_of_calls() {
    let server = postgres::start(&["track_functions=pl"]).unwrap();
    let url = url(&server, "");
    drop(Locks::connect(&url).await.unwrap());
    let load = Load { stores: 4, tasks: 16, names: 1, readers: false, min_holds: 500, ..Load::default() };
    let outcome = load.run(&url, async {}).await;
    outcome.assert_consistent();
    // A backend reports its counts within a second, and at the latest when it ends.
    clock::until("all connections are gone", async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
        number(&mut connection(&server).await, sql).await == 1
    })
    .await;
    let calls = async |function: &str| {
        let sql = format!(
            "SELECT sum(calls)::bigint FROM pg_stat_user_functions WHERE funcname LIKE '%{function}'"
        );
        number(&mut connection(&server).await, &sql).await
    };
    let (claims, releases) = (calls("_claim_4").await, calls("_release_4").await);
    let acquisitions = f64::from(u32::try_from(outcome.sections.len()).unwrap());
    let each = f64::from(u32::try_from(claims + releases).unwrap()) / acquisitions;
    println!("{claims} claims and {releases} releases for {acquisitions} acquisitions: {each:.2} each");
    // One of each, and a recheck every second.
    let waited: u64 = outcome.sections.iter().map(|section| section.acquired - section.invoked).sum();
    let seconds = Duration::from_nanos(waited).as_secs_f64() / acquisitions;
    assert!(each < 2.6 + seconds, "{each:.2} in {seconds:.2} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_behind_a_pooler_in_transaction_mode() {
    let server = postgres::start(&[]).unwrap();
    let pooler = pgbouncer::start(&server, &[]).unwrap();
    let url = url(&pooler, "");
    let outcome = Load { min_holds: 30, ..Load::default() }.run(&url, async {}).await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > 30, "{}", outcome.sections.len());
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    // A statement that its client has given up may still run.
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    clock::until("none is left in a session", async || {
        number(&mut connection(&server).await, sql).await == 0
    })
    .await;

    // Notifications do not come through, and can be fetched past it.
    let direct: String = server.url().bytes().map(|byte| format!("%{byte:02x}")).collect();
    let past = format!("{url}&polylock.listen={direct}&application_name=past");
    let (holder, waiter) = (Locks::connect(&past).await.unwrap(), Locks::connect(&past).await.unwrap());
    let guard = holder.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("a").acquire());
    clock::until("it listens past the pooler", async || {
        number(&mut connection(&server).await, &format!("{LISTENERS}'postgres'")).await
            + number(
                &mut connection(&server).await,
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'",
            )
            .await
            > 0
    })
    .await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_can_be_created_by_many_processes_at_once() {
    let server = postgres().unwrap();
    let url = url(server, "&polylock.schema=at_once");
    let opened: Vec<_> = (0..16)
        .map(|_| {
            tokio::spawn({
                let url = url.clone();
                async move { Locks::connect(&url).await }
            })
        })
        .collect();
    for locks in opened {
        locks.await.unwrap().unwrap().lock("a").acquire().await.unwrap().release().await.unwrap();
    }
}

/// The server's clock, as the claims see it, is set forward by an hour and back, while a store is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_servers_clock_costs_a_claim_only_one_round_trip() {
    let server = postgres().unwrap();
    let url = url(server, "");
    let locks = Locks::connect(&url).await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    plant(server, &url, |claim| {
        claim.replace("FROM clock_timestamp()", "FROM clock_timestamp() + interval '1 hour'")
    })
    .await;
    for _ in 0..2 {
        locks.lock("a").try_acquire().await.unwrap().expect("free").release().await.unwrap();
    }
    plant(server, &url, |claim| {
        claim.replace("FROM clock_timestamp()", "FROM clock_timestamp() + interval '0'")
    })
    .await;
    locks.lock("a").try_acquire().await.unwrap().expect("free").release().await.unwrap();
}

/// The releaser also hands the lock over to a dead waiter, for at most its queue lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_handed_to_a_dead_waiter_lasts_for_its_queue_lease() {
    let namespace = stores::namespace("postgres").await;
    let (store, locks) = (namespace.connect().await.unwrap(), Locks::connect(namespace.url()).await.unwrap());
    let guard = locks.lock("n").acquire().await.unwrap();
    let dead = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(600));
    let claim = async move { store.backend.claim(&dead).await };
    let outcome = io::run("postgres", claim).await.unwrap().unwrap();
    assert!(matches!(outcome, ClaimOutcome::Queued(_)));
    guard.release().await.unwrap();
    let holder = locks.inspect("n").await.unwrap().holders.remove(0);
    assert!(holder.expires_in <= Request::MAX_QUEUE_LEASE, "{holder:?}");
    locks.lock("n").wait(clock::TIMEOUT).acquire().await.unwrap().release().await.unwrap();
}

/// A client of a lock service continues on another server, which claims for it from then on.
#[tokio::test(flavor = "multi_thread")]
async fn the_process_of_the_last_claim_is_notified_of_the_grant() {
    let namespace = stores::namespace("postgres").await;
    let [first, second] = [namespace.connect().await.unwrap(), namespace.connect().await.unwrap()];
    let guard = Locks::connect(namespace.url()).await.unwrap().lock("n").acquire().await.unwrap();
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(60));
    let waiting = async move {
        first.backend.claim(&request).await.unwrap();
        second.backend.claim(&request).await.unwrap();
        // Until its listening connection works, it polls for the grant.
        assert_eq!(second.backend.wait(&request).await.unwrap(), Wake::Stale);
        second.backend.claim(&request).await.unwrap();
        let (wake, released) = tokio::join!(
            SystemClock.before(now() + clock::TIMEOUT, second.backend.wait(&request)),
            guard.release()
        );
        released.unwrap();
        second.backend.release(&request).await.unwrap();
        wake
    };
    let wake = io::run("postgres", waiting).await.unwrap().expect("the grant is notified").unwrap();
    assert!(matches!(wake, Wake::Granted(_)), "{wake:?}");
}

/// Without a listener a process learns of a hand-over by looking at the tables.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_listener_grants_are_found_by_polling() {
    let server = postgres::start(&[]).unwrap();
    let url = url(&server, "&polylock.listen=off");
    let (holder, waiter) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let mut took = Vec::new();
    for _ in 0..5 {
        took.push(hand_over(&holder, &waiter, "a").await);
    }
    took.sort();
    println!("{took:?}");
    // Far less than the recheck, which is the only other way. A busy machine may delay some of them.
    assert!(took[1] < Duration::from_millis(400), "{took:?}");
    let log = server.log();
    assert!(!log.contains("ERROR"), "{log}");
}

/// Long before its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_notifies_a_listening_holder() {
    let server = postgres().unwrap();
    let url = url(server, "&polylock.ttl=10m&application_name=receives-breaks");
    let (holder, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = holder.lock("n").acquire().await.unwrap();
    let listens = format!("{LISTENERS}'receives-breaks'");
    clock::until("it listens", async || number(&mut connection(server).await, &listens).await == 1).await;
    // The check for breaks at the start of listening can't find the second one.
    let second = holder.lock("second").acquire().await.unwrap();
    for (name, guard) in [("n", guard), ("second", second)] {
        let broken = now();
        other.break_lock(name).await.unwrap();
        let lost = tokio::time::timeout(clock::TIMEOUT, guard.lost()).await.expect("before its renewal");
        println!("{lost} after {:?}", now().since(broken));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_advisory_lock_on_a_name_blocks_claims_but_no_renewals() {
    let server = postgres().unwrap();
    let url = url(server, "&polylock.operation_timeout=300ms&polylock.ttl=4s");
    let (_, rest) = url.split_once("polylock.namespace=").unwrap();
    let table = rest.split('&').next().unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("orders/42").acquire().await.unwrap();
    let mut other = connection(server).await;
    // As the page has it.
    let key = |name: &str| {
        format!("hashtextextended('\"public\".{table}:' || encode(convert_to('{name}', 'UTF8'), 'hex'), 0)")
    };
    let keys = [key("orders/42"), key("free")];
    for key in &keys {
        other.execute(sqlx::raw_sql(AssertSqlSafe(format!("SELECT pg_advisory_lock({key})")))).await.unwrap();
    }
    let renewed = held.renewed();
    let error = locks.lock("free").wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert!(error.is_temporary() && matches!(error, polylock::Error::Unavailable(_)), "{error:?}");
    locks.lock("orders/43").acquire().await.unwrap().release().await.unwrap();
    assert!(renewed.await.is_some() && held.is_held(), "it was not renewed");
    for key in &keys {
        other
            .execute(sqlx::raw_sql(AssertSqlSafe(format!("SELECT pg_advisory_unlock({key})"))))
            .await
            .unwrap();
    }
    held.release().await.unwrap();
    for name in ["orders/42", "free"] {
        locks.lock(name).acquire().await.unwrap().release().await.unwrap();
    }
}

alone! { opening_the_store_warns_of_a_transaction_that_keeps_deleted_rows }

async fn opening_the_store_warns_of_a_transaction_that_keeps_deleted_rows() {
    static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    trace::listen(|_, line| {
        if line.contains("an old transaction is open") {
            WARNINGS.lock().unwrap().push(line.to_owned());
        }
    });
    let server = postgres::start(&[]).unwrap();
    // The shortest age that the query distinguishes from zero.
    let config = || Config::new(&url(&server, "")).unwrap().old_snapshot(Duration::from_secs(1));
    polylock_sql::postgres::connect(config()).await.unwrap();
    assert_eq!(WARNINGS.lock().unwrap().len(), 0);
    let mut report = connection(&server).await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    report.execute(sqlx::raw_sql(begin)).await.unwrap();
    clock::until("a warning", || async {
        polylock_sql::postgres::connect(config()).await.unwrap();
        !WARNINGS.lock().unwrap().is_empty()
    })
    .await;
    report.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
    WARNINGS.lock().unwrap().clear();
    polylock_sql::postgres::connect(config()).await.unwrap();
    assert_eq!(WARNINGS.lock().unwrap().len(), 0);
}
