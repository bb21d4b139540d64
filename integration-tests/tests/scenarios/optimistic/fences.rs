//! A table of fences guards whole transactions.

use polylock_sql::optimistic::{Error, Fences, retry};

use super::{
    database::{Db, TestDatabase},
    on_every_database, token,
};

on_every_database!(
    a_fence_accepts_any_first_token_and_then_no_smaller_one,
    a_refused_holder_gets_no_transaction,
    names_are_compared_byte_by_byte,
    the_error_for_a_missing_table_contains_its_schema,
    several_tasks_may_create_the_table_at_once,
    a_check_waits_for_a_transaction_stalled_after_its_check,
    a_check_that_waited_for_a_greater_token_is_refused,
    a_killed_transaction_writes_nothing_and_frees_the_fence,
    an_old_snapshot_never_accepts_a_stale_token,
    an_accepted_transaction_reads_the_writes_of_the_previous_one,
    several_locks_guard_one_transaction,
);

impl<D: Db> TestDatabase<D> {
    /// Passes, or does not, without writing anything.
    async fn accepts(&self, name: &str, number: i64) -> Result<(), Error> {
        Ok(self.fences.begin(&self.pool, name, token(number)).await?.commit().await?)
    }

    /// Writes its token into the row, if it may, in a task of its own.
    fn writer(&self, number: i64) -> tokio::task::JoinHandle<Result<(), Error>> {
        let database = self.clone();
        tokio::spawn(async move {
            let mut transaction = database.fences.begin(&database.pool, "orders/1", token(number)).await?;
            database.write(&mut transaction, number).await?;
            Ok(transaction.commit().await?)
        })
    }
}

async fn a_fence_accepts_any_first_token_and_then_no_smaller_one<D: Db>(database: TestDatabase<D>) {
    for (number, passes) in
        [(0, true), (7, true), (7, true), (6, false), (8, true), (7, false), (i64::MAX, true)]
    {
        let outcome = database.accepts("orders/1", number).await;
        assert_eq!(outcome.is_ok(), passes, "{number}: {outcome:?}");
    }
    let refused = database.accepts("orders/1", 8).await.unwrap_err();
    assert!(refused.is_stale() && !refused.is_retryable());
    let Error::Stale { resource, token: mine, current } = refused else { panic!("{refused}") };
    assert_eq!((resource.as_str(), mine, current), ("lock orders/1", token(8), token(i64::MAX)));
}

async fn a_refused_holder_gets_no_transaction<D: Db>(database: TestDatabase<D>) {
    database.accepts("orders/1", 5).await.unwrap();
    // Written before the check, against the advice, and refused: the transaction is all that could keep it.
    let mut transaction = database.pool.begin().await.unwrap();
    database.write(&mut transaction, 4).await.unwrap();
    assert!(database.fences.check(&mut transaction, "orders/1", token(4)).await.unwrap_err().is_stale());
    drop(transaction);
    // A token that was raised in vain has not been there.
    let mut transaction = database.fences.begin(&database.pool, "orders/1", token(9)).await.unwrap();
    database.write(&mut transaction, 9).await.unwrap();
    transaction.rollback().await.unwrap();
    database.writer(6).await.unwrap().unwrap();
    assert_eq!(database.written_tokens().await, [6]);
}

async fn names_are_compared_byte_by_byte<D: Db>(database: TestDatabase<D>) {
    let long = "é".repeat(127);
    let names = [
        "job",
        "Job",
        "job ",
        "jöb",
        "jo\u{308}b",
        " job",
        "'; --",
        "%",
        long.as_str(),
        "日本",
        "a\\b",
        "a\n",
    ];
    for (number, name) in (0..).zip(names) {
        database.accepts(name, number).await.unwrap();
    }
    for (number, name) in (0..).zip(names).skip(1) {
        let refused = database.accepts(name, number - 1).await.unwrap_err();
        let Error::Stale { current, .. } = refused else { panic!("{name}: {refused}") };
        assert_eq!(current, token(number), "{name:?}");
    }
    for name in ["", "a\0b", &"x".repeat(256)] {
        assert!(matches!(database.accepts(name, 1).await, Err(Error::InvalidName(_))), "{name:?}");
    }
}

async fn the_error_for_a_missing_table_contains_its_schema<D: Db>(mut database: TestDatabase<D>) {
    let name = format!("{}_Order", database.name);
    database.fences = Fences::new(&name).unwrap();
    let refused = database.accepts("x", 1).await.unwrap_err();
    let Error::NoFences { table, schema, .. } = &refused else { panic!("{refused}") };
    assert_eq!((table, schema), (&name, &database.fences.schema::<D>()));
    database.run(schema).await;
    database.accepts("x", 1).await.unwrap();
    // An existing table stays as it is.
    database.fences.create(&database.pool).await.unwrap();
    assert!(database.accepts("x", 0).await.unwrap_err().is_stale());
}

async fn several_tasks_may_create_the_table_at_once<D: Db>(mut database: TestDatabase<D>) {
    for round in 0..5 {
        database.fences = Fences::new(format!("{}_{round}", database.name)).unwrap();
        let makers: Vec<_> = (0..8)
            .map(|_| {
                let database = database.clone();
                tokio::spawn(async move { database.fences.create(&database.pool).await })
            })
            .collect();
        for maker in makers {
            maker.await.unwrap().unwrap();
        }
        database.accepts("x", 1).await.unwrap();
    }
}

async fn a_check_waits_for_a_transaction_stalled_after_its_check<D: Db>(database: TestDatabase<D>) {
    // The row of the fence is new, there already, there and rolled back: each is locked in its own way.
    for (number, commits) in [(1, false), (3, true), (5, false), (7, true)] {
        let mut stalled = database.fences.begin(&database.pool, "orders/1", token(number)).await.unwrap();
        let next = database.writer(number + 1);
        database.wait_for_waiter().await;
        assert!(!next.is_finished());
        database.write(&mut stalled, number).await.unwrap();
        if commits {
            stalled.commit().await.unwrap();
        } else {
            drop(stalled);
        }
        next.await.unwrap().unwrap();
        assert!(database.accepts("orders/1", number).await.unwrap_err().is_stale());
    }
    assert_eq!(database.written_tokens().await, [2, 3, 4, 6, 7, 8]);
}

async fn a_check_that_waited_for_a_greater_token_is_refused<D: Db>(database: TestDatabase<D>) {
    for (number, commits) in [(2, true), (4, true), (6, false)] {
        let mut greater = database.fences.begin(&database.pool, "orders/1", token(number)).await.unwrap();
        let smaller = database.writer(number - 1);
        database.wait_for_waiter().await;
        database.write(&mut greater, number).await.unwrap();
        if commits {
            greater.commit().await.unwrap();
        } else {
            drop(greater);
        }
        let outcome = smaller.await.unwrap();
        assert_eq!(outcome.as_ref().is_err_and(Error::is_stale), commits, "{outcome:?}");
    }
    assert_eq!(database.written_tokens().await, [2, 4, 5]);
}

async fn a_killed_transaction_writes_nothing_and_frees_the_fence<D: Db>(database: TestDatabase<D>) {
    let mut stalled = database.fences.begin(&database.pool, "orders/1", token(1)).await.unwrap();
    database.write(&mut stalled, 1).await.unwrap();
    let next = database.writer(2);
    database.wait_for_waiter().await;
    D::kill(&database.pool, stalled).await;
    next.await.unwrap().unwrap();
    assert_eq!(database.written_tokens().await, [2]);
}

async fn an_old_snapshot_never_accepts_a_stale_token<D: Db>(database: TestDatabase<D>) {
    for (step, level) in (0..).step_by(10).zip(D::SNAPSHOTS) {
        let old = database.pool_at(level).await;
        database.accepts("orders/1", step).await.unwrap();
        // A snapshot in which the fence is low, then a later holder, then the check.
        let mut stale = old.begin().await.unwrap();
        database.select(&mut stale, "SELECT token FROM {p}_fences").await.unwrap();
        database.writer(step + 2).await.unwrap().unwrap();
        let refused = database.fences.check(&mut stale, "orders/1", token(step + 1)).await.unwrap_err();
        assert!(refused.is_stale() || refused.is_retryable(), "{level}: {refused:?}");
        drop(stale);
        let refused = database.fences.begin(&old, "orders/1", token(step + 1)).await.unwrap_err();
        assert!(refused.is_stale(), "{level}: {refused:?}");
    }
}

async fn an_accepted_transaction_reads_the_writes_of_the_previous_one<D: Db>(database: TestDatabase<D>) {
    for (step, level) in (1..).step_by(10).zip(D::ISOLATION_LEVELS) {
        let old = database.pool_at(level).await;
        let mut before = database.fences.begin(&old, "orders/1", token(step)).await.unwrap();
        let next = tokio::spawn({
            let (database, old) = (database.clone(), old.clone());
            async move {
                retry(20, Error::is_retryable, || async {
                    let mut transaction = database.fences.begin(&old, "orders/1", token(step + 1)).await?;
                    let read = database.note(&mut transaction).await;
                    transaction.commit().await?;
                    Ok(read)
                })
                .await
            }
        });
        database.wait_for_waiter().await;
        database.write(&mut before, step).await.unwrap();
        before.commit().await.unwrap();
        assert_eq!(next.await.unwrap().unwrap(), step, "{level}");
    }
}

async fn several_locks_guard_one_transaction<D: Db>(database: TestDatabase<D>) {
    database.accepts("b", 5).await.unwrap();
    let mut transaction = database.fences.begin(&database.pool, "a", token(9)).await.unwrap();
    assert!(database.fences.check(&mut transaction, "b", token(4)).await.unwrap_err().is_stale());
    drop(transaction);
    // Also in a savepoint that is not rolled back.
    let mut transaction = database.fences.begin(&database.pool, "a", token(3)).await.unwrap();
    let mut inner = database.fences.begin(&mut transaction, "b", token(5)).await.unwrap();
    database.write(&mut inner, 35).await.unwrap();
    inner.commit().await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(database.written_tokens().await, [35]);
}
