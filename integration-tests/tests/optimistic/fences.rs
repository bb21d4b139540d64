//! A table of fences guards whole transactions.

use polylock_sql::optimistic::{Error, Fences, retry};

use super::{
    database::{Db, Place},
    on_every_database, token,
};

on_every_database!(
    any_token_passes_first_and_then_only_one_that_is_not_smaller,
    a_refused_holder_has_no_transaction_to_write_with,
    names_count_byte_for_byte,
    a_missing_table_is_told_with_the_statement_that_makes_it,
    several_may_make_the_table_at_once,
    whoever_stalls_after_the_check_is_waited_for,
    who_waited_is_refused_if_the_other_had_the_greater_token,
    a_killed_transaction_lets_the_next_in_and_lands_nothing,
    an_old_snapshot_never_lets_a_stale_token_pass,
    who_passes_reads_what_the_one_before_wrote,
    several_locks_guard_one_transaction,
);

impl<D: Db> Place<D> {
    /// Passes, or does not, without writing anything.
    async fn passes(&self, name: &str, number: i64) -> Result<(), Error> {
        Ok(self.fences.begin(&self.pool, name, token(number)).await?.commit().await?)
    }

    /// Writes its token into the row, if it may, in a task of its own.
    fn writer(&self, number: i64) -> tokio::task::JoinHandle<Result<(), Error>> {
        let place = self.clone();
        tokio::spawn(async move {
            let mut transaction = place.fences.begin(&place.pool, "orders/1", token(number)).await?;
            place.write(&mut transaction, number).await?;
            Ok(transaction.commit().await?)
        })
    }
}

async fn any_token_passes_first_and_then_only_one_that_is_not_smaller<D: Db>(place: Place<D>) {
    for (number, passes) in
        [(0, true), (7, true), (7, true), (6, false), (8, true), (7, false), (i64::MAX, true)]
    {
        let outcome = place.passes("orders/1", number).await;
        assert_eq!(outcome.is_ok(), passes, "{number}: {outcome:?}");
    }
    let refused = place.passes("orders/1", 8).await.unwrap_err();
    assert!(refused.is_stale() && !refused.is_retryable());
    let Error::Stale { resource, token: mine, current } = refused else { panic!("{refused}") };
    assert_eq!((resource.as_str(), mine, current), ("lock orders/1", token(8), token(i64::MAX)));
}

async fn a_refused_holder_has_no_transaction_to_write_with<D: Db>(place: Place<D>) {
    place.passes("orders/1", 5).await.unwrap();
    // Written before the check, against the advice, and refused: the transaction is all that could keep it.
    let mut transaction = place.pool.begin().await.unwrap();
    place.write(&mut transaction, 4).await.unwrap();
    assert!(place.fences.check(&mut transaction, "orders/1", token(4)).await.unwrap_err().is_stale());
    drop(transaction);
    // A token that was raised in vain has not been there.
    let mut transaction = place.fences.begin(&place.pool, "orders/1", token(9)).await.unwrap();
    place.write(&mut transaction, 9).await.unwrap();
    transaction.rollback().await.unwrap();
    place.writer(6).await.unwrap().unwrap();
    assert_eq!(place.landed().await, [6]);
}

async fn names_count_byte_for_byte<D: Db>(place: Place<D>) {
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
        place.passes(name, number).await.unwrap();
    }
    for (number, name) in (0..).zip(names).skip(1) {
        let refused = place.passes(name, number - 1).await.unwrap_err();
        let Error::Stale { current, .. } = refused else { panic!("{name}: {refused}") };
        assert_eq!(current, token(number), "{name:?}");
    }
    for name in ["", "a\0b", &"x".repeat(256)] {
        assert!(matches!(place.passes(name, 1).await, Err(Error::InvalidName(_))), "{name:?}");
    }
}

async fn a_missing_table_is_told_with_the_statement_that_makes_it<D: Db>(mut place: Place<D>) {
    let name = format!("{}_Order", place.name);
    place.fences = Fences::new(&name).unwrap();
    let refused = place.passes("x", 1).await.unwrap_err();
    let Error::NoFences { table, schema, .. } = &refused else { panic!("{refused}") };
    assert_eq!((table, schema), (&name, &place.fences.schema::<D>()));
    place.run(schema).await;
    place.passes("x", 1).await.unwrap();
    // What is there already is left alone.
    place.fences.create(&place.pool).await.unwrap();
    assert!(place.passes("x", 0).await.unwrap_err().is_stale());
}

async fn several_may_make_the_table_at_once<D: Db>(mut place: Place<D>) {
    for round in 0..5 {
        place.fences = Fences::new(format!("{}_{round}", place.name)).unwrap();
        let makers: Vec<_> = (0..8)
            .map(|_| {
                let place = place.clone();
                tokio::spawn(async move { place.fences.create(&place.pool).await })
            })
            .collect();
        for maker in makers {
            maker.await.unwrap().unwrap();
        }
        place.passes("x", 1).await.unwrap();
    }
}

async fn whoever_stalls_after_the_check_is_waited_for<D: Db>(place: Place<D>) {
    // The row of the fence is new, there already, there and rolled back: each is locked in its own way.
    for (number, commits) in [(1, false), (3, true), (5, false), (7, true)] {
        let mut stalled = place.fences.begin(&place.pool, "orders/1", token(number)).await.unwrap();
        let next = place.writer(number + 1);
        place.somebody_waits().await;
        assert!(!next.is_finished());
        place.write(&mut stalled, number).await.unwrap();
        if commits {
            stalled.commit().await.unwrap();
        } else {
            drop(stalled);
        }
        next.await.unwrap().unwrap();
        assert!(place.passes("orders/1", number).await.unwrap_err().is_stale());
    }
    assert_eq!(place.landed().await, [2, 3, 4, 6, 7, 8]);
}

async fn who_waited_is_refused_if_the_other_had_the_greater_token<D: Db>(place: Place<D>) {
    for (number, commits) in [(2, true), (4, true), (6, false)] {
        let mut greater = place.fences.begin(&place.pool, "orders/1", token(number)).await.unwrap();
        let smaller = place.writer(number - 1);
        place.somebody_waits().await;
        place.write(&mut greater, number).await.unwrap();
        if commits {
            greater.commit().await.unwrap();
        } else {
            drop(greater);
        }
        let outcome = smaller.await.unwrap();
        assert_eq!(outcome.as_ref().is_err_and(Error::is_stale), commits, "{outcome:?}");
    }
    assert_eq!(place.landed().await, [2, 4, 5]);
}

async fn a_killed_transaction_lets_the_next_in_and_lands_nothing<D: Db>(place: Place<D>) {
    let mut stalled = place.fences.begin(&place.pool, "orders/1", token(1)).await.unwrap();
    place.write(&mut stalled, 1).await.unwrap();
    let next = place.writer(2);
    place.somebody_waits().await;
    D::kill(&place.pool, stalled).await;
    next.await.unwrap().unwrap();
    assert_eq!(place.landed().await, [2]);
}

async fn an_old_snapshot_never_lets_a_stale_token_pass<D: Db>(place: Place<D>) {
    for (step, level) in (0..).step_by(10).zip(D::SNAPSHOTS) {
        let old = place.pool_at(level).await;
        place.passes("orders/1", step).await.unwrap();
        // A snapshot in which the fence is low, then a later holder, then the check.
        let mut stale = old.begin().await.unwrap();
        place.select(&mut stale, "SELECT token FROM {p}_fences").await.unwrap();
        place.writer(step + 2).await.unwrap().unwrap();
        let refused = place.fences.check(&mut stale, "orders/1", token(step + 1)).await.unwrap_err();
        assert!(refused.is_stale() || refused.is_retryable(), "{level}: {refused:?}");
        drop(stale);
        let refused = place.fences.begin(&old, "orders/1", token(step + 1)).await.unwrap_err();
        assert!(refused.is_stale(), "{level}: {refused:?}");
    }
}

async fn who_passes_reads_what_the_one_before_wrote<D: Db>(place: Place<D>) {
    for (step, level) in (1..).step_by(10).zip(D::LEVELS) {
        let old = place.pool_at(level).await;
        let mut before = place.fences.begin(&old, "orders/1", token(step)).await.unwrap();
        let next = tokio::spawn({
            let (place, old) = (place.clone(), old.clone());
            async move {
                retry(20, Error::is_retryable, || async {
                    let mut transaction = place.fences.begin(&old, "orders/1", token(step + 1)).await?;
                    let read = place.note(&mut transaction).await;
                    transaction.commit().await?;
                    Ok(read)
                })
                .await
            }
        });
        place.somebody_waits().await;
        place.write(&mut before, step).await.unwrap();
        before.commit().await.unwrap();
        assert_eq!(next.await.unwrap().unwrap(), step, "{level}");
    }
}

async fn several_locks_guard_one_transaction<D: Db>(place: Place<D>) {
    place.passes("b", 5).await.unwrap();
    let mut transaction = place.fences.begin(&place.pool, "a", token(9)).await.unwrap();
    assert!(place.fences.check(&mut transaction, "b", token(4)).await.unwrap_err().is_stale());
    drop(transaction);
    // In a savepoint, too, as long as it is kept.
    let mut transaction = place.fences.begin(&place.pool, "a", token(3)).await.unwrap();
    let mut inner = place.fences.begin(&mut transaction, "b", token(5)).await.unwrap();
    place.write(&mut inner, 35).await.unwrap();
    inner.commit().await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(place.landed().await, [35]);
}
