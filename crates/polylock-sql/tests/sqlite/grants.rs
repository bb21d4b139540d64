//! Grants: the order of the requests, the tokens and the leases.

use std::time::Duration;

use polylock_core::{
    BreakNotice, BreakOrder, ClaimOutcome, Clock, FencingToken, KeepAlive, LockName, LostReason, Mode,
    Request, SystemClock,
};

use sqlx::Executor;

use crate::common::{TestFile, held, keep_alive, queued, request, request_with_ttl};

#[tokio::test]
async fn a_repeated_claim_returns_the_same_grant_and_its_remaining_lease() {
    let (file, a) = (TestFile::new(), request("n", Mode::Exclusive));
    let store = file.store().await;
    let first = held(&store, &a).await;
    assert_eq!(first.lease, a.ttl);
    let again = held(&store, &a).await;
    assert_eq!(again.token, first.token);
    assert!(again.lease <= first.lease && again.lease > first.lease - Duration::from_secs(5), "{again:?}");
    assert_eq!(file.rows().await, 1);
}

#[tokio::test]
async fn a_repeated_claim_keeps_its_queue_position() {
    let file = TestFile::new();
    let store = file.store().await;
    let [a, b, c] = [(); 3].map(|()| request("n", Mode::Exclusive));
    held(&store, &a).await;
    assert_eq!(queued(&store, &b).await.ahead, Some(1));
    assert_eq!(queued(&store, &c).await.ahead, Some(2));
    let position = queued(&store, &b).await;
    assert_eq!(position.ahead, Some(1));
    assert!(position.recheck_after <= b.queue_lease() / 3, "{position:?}");
    assert_eq!(file.rows().await, 3);
}

#[tokio::test]
async fn a_try_leaves_no_row_and_returns_its_own_grant() {
    let file = TestFile::new();
    let store = file.store().await;
    let (a, mut b) = (request("n", Mode::Exclusive), request("n", Mode::Shared));
    b.queues = false;
    held(&store, &a).await;
    assert_eq!(queued(&store, &b).await.ahead, Some(1));
    assert_eq!(file.rows().await, 1);
    store.backend.release(&a).await.unwrap();
    let token = held(&store, &b).await.token;
    assert_eq!(held(&store, &b).await.token, token);
}

#[tokio::test]
async fn a_release_is_idempotent_and_affects_no_other_request() {
    let file = TestFile::new();
    let store = file.store().await;
    let [a, b, stranger] = [(); 3].map(|()| request("n", Mode::Exclusive));
    held(&store, &a).await;
    queued(&store, &b).await;
    store.backend.release(&stranger).await.unwrap();
    assert_eq!(queued(&store, &b).await.ahead, Some(1));
    store.backend.release(&a).await.unwrap();
    store.backend.release(&a).await.unwrap();
    held(&store, &b).await;
    store.backend.release(&a).await.unwrap();
    assert!(matches!(keep_alive(&store, &b).await.unwrap(), KeepAlive::Held { .. }));
    store.backend.release(&b).await.unwrap();
    assert_eq!(file.rows().await, 0);
}

#[tokio::test]
async fn a_release_before_the_claim_does_not_prevent_the_claim() {
    let (file, a) = (TestFile::new(), request("n", Mode::Exclusive));
    let store = file.store().await;
    store.backend.release(&a).await.unwrap();
    held(&store, &a).await;
}

#[tokio::test]
async fn an_expired_hold_is_replaced_with_a_greater_token_and_reported_lost() {
    let file = TestFile::new();
    let (one, two) = (file.store().await, file.store().await);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::ProtectedWrite] {
        let (a, b) = (request_with_ttl("n", mode, Duration::from_secs(2)), request("n", Mode::Exclusive));
        let first = held(&one, &a).await;
        let sent = SystemClock.now();
        let position = queued(&two, &b).await;
        assert!(position.recheck_after <= a.ttl, "{position:?}");
        SystemClock.sleep_until(sent + a.ttl + Duration::from_millis(5)).await;
        let second = held(&two, &b).await;
        assert!(second.token > first.token);
        assert_eq!(keep_alive(&one, &a).await.unwrap(), KeepAlive::Lost(LostReason::Gone));
        one.backend.release(&a).await.unwrap();
        assert!(matches!(keep_alive(&two, &b).await.unwrap(), KeepAlive::Held { .. }));
        two.backend.release(&b).await.unwrap();
        assert_eq!(file.rows().await, 0);
    }
}

#[tokio::test]
async fn a_lease_is_never_shorter_than_reported() {
    let file = TestFile::new();
    let store = file.store().await;
    for _ in 0..8 {
        let a = request_with_ttl("n", Mode::Exclusive, Duration::from_micros(100_700));
        let mut b = request("n", Mode::Exclusive);
        b.queues = false;
        let sent = SystemClock.now();
        held(&store, &a).await;
        loop {
            let asked = SystemClock.now();
            let again = store.backend.claim(&b).await.unwrap();
            let answered = SystemClock.now();
            match again {
                ClaimOutcome::Granted(_) => {
                    assert!(
                        answered >= sent + a.ttl,
                        "taken over {:?} after the claim",
                        answered.since(sent)
                    );
                    break;
                }
                ClaimOutcome::Queued(_) => {
                    assert!(asked < sent + a.ttl + Duration::from_secs(2), "never expires");
                }
            }
        }
        store.backend.release(&b).await.unwrap();
    }
}

#[tokio::test]
async fn a_renewal_extends_a_hold_and_creates_none() {
    let file = TestFile::new();
    let store = file.store().await;
    let a = request_with_ttl("n", Mode::Exclusive, Duration::from_secs(2));
    assert_eq!(keep_alive(&store, &a).await.unwrap(), KeepAlive::Lost(LostReason::Gone));
    held(&store, &a).await;
    let start = SystemClock.now();
    while SystemClock.now() < start + Duration::from_secs(3) {
        let kept = keep_alive(&store, &a).await.unwrap();
        assert!(matches!(kept, KeepAlive::Held { lease, .. } if lease <= a.ttl), "{kept:?}");
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(20)).await;
    }
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2005)).await;
    assert_eq!(keep_alive(&store, &a).await.unwrap(), KeepAlive::Lost(LostReason::Gone), "revived");
}

#[tokio::test]
async fn tokens_grow_across_releases_restarts_and_sweeps() {
    let file = TestFile::new();
    let mut last = None;
    for _ in 0..3 {
        let store = file.store().await;
        for _ in 0..3 {
            for name in ["a", "b"] {
                let a = request(name, Mode::Shared);
                let token = held(&store, &a).await.token;
                assert!(Some(token) > last, "{token} after {last:?}");
                last = Some(token);
                store.backend.release(&a).await.unwrap();
            }
        }
        sqlx::query("VACUUM").execute(&mut file.raw().await).await.unwrap();
        drop(store);
    }
}

#[tokio::test]
async fn the_database_itself_refuses_a_second_exclusive_holder() {
    let file = TestFile::new();
    let store = file.store().await;
    held(&store, &request("n", Mode::Exclusive)).await;
    let copy = "INSERT INTO polylock_holds (name, slot, request, mode, owner, label, since, expires_at) \
                SELECT name, slot, randomblob(16), mode, owner, label, since, expires_at FROM polylock_holds";
    let refused = sqlx::query(copy).execute(&mut file.raw().await).await.unwrap_err();
    assert!(refused.as_database_error().unwrap().is_unique_violation(), "{refused}");
}

#[tokio::test]
async fn names_are_compared_byte_by_byte() {
    let file = TestFile::new();
    let store = file.store().await;
    let names = [
        "job",
        "JOB",
        "job ",
        " job",
        "jöb",
        "jo\u{308}b",
        "job%",
        "job_",
        "j?b",
        "*",
        "'\"`;--",
        "\u{10ffff}",
        "\n",
    ];
    for name in names {
        held(&store, &request(name, Mode::Exclusive)).await;
    }
    assert_eq!(file.rows().await, 13);
    let list = store.inspect.unwrap();
    let found = |prefix: &'static str| {
        let list = list.clone();
        async move { list.list(prefix).await.unwrap().into_iter().map(|l| l.name.to_string()).collect::<Vec<_>>() }
    };
    assert_eq!(found("job").await, ["job", "job ", "job%", "job_"]);
    assert_eq!(found("job%").await, ["job%"]);
    assert_eq!(found("j_b").await, [""; 0]);
    assert_eq!(found("\u{10ffff}").await, ["\u{10ffff}"]);
    assert_eq!(found("").await.len(), 13);
}

#[tokio::test]
async fn inspection_lists_holders_and_waiters_and_a_break_removes_the_holds() {
    let file = TestFile::new();
    let (store, other) = (file.store().await, file.store().await);
    let inspect = store.inspect.clone().unwrap();
    let name = LockName::new("n").unwrap();
    assert!(inspect.inspect(&name).await.unwrap().is_free());
    let order = |tokens: &[FencingToken]| {
        BreakOrder::new(BreakNotice::default(), tokens.iter().copied().map(Some)).force()
    };
    let none = FencingToken::new(1).unwrap();
    assert!(inspect.break_lock(&name, &order(&[none])).await.unwrap().is_empty());
    let shared = [(); 2].map(|()| request("n", Mode::Shared));
    let mut writer = request("n", Mode::Exclusive);
    writer.label = Some(polylock_core::Label::new("nightly").unwrap());
    let tokens = [held(&store, &shared[0]).await.token, held(&store, &shared[1]).await.token];
    queued(&other, &writer).await;
    queued(&other, &request("n", Mode::Shared)).await;
    let gone = request_with_ttl("n", Mode::Null, Duration::from_millis(100));
    held(&store, &gone).await;
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(105)).await;
    let status = inspect.inspect(&name).await.unwrap();
    assert_eq!(status.holders.iter().map(|h| h.token.unwrap()).collect::<Vec<_>>(), tokens);
    assert_eq!(status.waiters.iter().map(|w| w.mode).collect::<Vec<_>>(), [Mode::Exclusive, Mode::Shared]);
    let first = &status.waiters[0];
    assert_eq!((first.label.as_str(), &first.owner, first.token), ("nightly", &writer.owner, None));
    assert!(first.expires_in <= writer.queue_lease() && first.age >= Duration::from_millis(100), "{first:?}");
    assert_eq!(inspect.list("").await.unwrap().len(), 1);
    assert!(inspect.break_lock(&name, &order(&[none])).await.unwrap().is_empty());
    assert_eq!(inspect.inspect(&name).await.unwrap().holders.len(), 2);
    let broken = inspect.break_lock(&name, &order(&tokens)).await.unwrap();
    assert_eq!(broken.iter().map(|h| h.token.unwrap()).collect::<Vec<_>>(), tokens);
    let lost = KeepAlive::Lost(LostReason::Broken(BreakNotice::default()));
    assert_eq!(keep_alive(&store, &shared[0]).await.unwrap(), lost);
    assert!(held(&other, &writer).await.token > tokens[1]);
}

#[tokio::test]
async fn no_request_id_is_shown() {
    let file = TestFile::new();
    let store = file.store().await;
    let a: Request = request("n", Mode::Exclusive);
    held(&store, &a).await;
    let status = store.inspect.clone().unwrap().inspect(&a.name).await.unwrap();
    let id: String = a.id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let shown = format!("{store:?} {status:?} {a:?}");
    assert!(!shown.to_lowercase().contains(&id), "{shown}");
}

/// The number of entries exceeds the limit of one statement.
#[tokio::test]
async fn a_long_list_is_read_in_pages_and_complete() {
    let file = TestFile::new();
    let store = file.store().await;
    let mut raw = file.raw().await;
    let rows = |count: u32, table: &str, columns: &str, values: &str| {
        format!(
            "INSERT INTO polylock_{table} ({columns}, name, request, mode, owner, label, since, expires_at) \
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
             SELECT {values}, randomblob(16), 32, 'o', '', 0, 9000000000000000 FROM n"
        )
    };
    for sql in [
        // 2,500 locks, one of which has 2,500 waiters, followed by others with waiters.
        rows(2500, "holds", "slot", "x'', CAST(printf('a%05d', i) AS BLOB)"),
        rows(2500, "waiters", "seq", "i, CAST('a01500' AS BLOB)"),
        rows(1000, "waiters", "seq", "i + 5000, CAST(printf('a%05d', i + 1499) AS BLOB)"),
        // Only polylock should write there; still, an entry with an invalid name hides no other one.
        "UPDATE polylock_holds SET name = x'6130ff' WHERE name = CAST('a01000' AS BLOB)".to_owned(),
    ] {
        raw.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    }
    let inspect = store.inspect.unwrap();
    for (prefix, count) in [("", 2499), ("a", 2499), ("a01", 999), ("b", 0)] {
        let prefix = prefix.to_owned();
        let inspect = inspect.clone();
        let locks = polylock_core::io::run("sqlite", async move { inspect.list(&prefix).await })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(locks.len(), count);
        assert!(
            locks.windows(2).all(|pair| pair[0].name.as_str() < pair[1].name.as_str()),
            "by name, each once"
        );
        assert!(locks.iter().all(|lock| lock.holders.len() == 1));
        if count > 2000 {
            let waiters =
                |name: &str| locks.iter().find(|lock| lock.name.as_str() == name).unwrap().waiters.len();
            assert_eq!(
                (
                    waiters("a01499"),
                    waiters("a01500"),
                    waiters("a01501"),
                    waiters("a02499"),
                    waiters("a02500")
                ),
                (0, 2501, 1, 1, 0)
            );
        }
    }
}
