//! Rows that carry a token or a version.

use polylock_sql::optimistic::{Error, FencedUpdate, VersionedUpdate};
use sqlx::{Encode, Type};

use super::{
    database::{Db, TestDatabase},
    on_every_database, token,
};

on_every_database!(
    a_row_refuses_a_smaller_token,
    a_repeated_write_succeeds,
    an_absent_row_is_reported_missing,
    a_key_of_several_rows_is_an_error,
    a_misspelt_column_is_an_error,
    invalid_updates_are_errors_and_are_not_sent,
    the_row_stays_locked_until_the_transaction_ends,
    an_old_snapshot_never_accepts_a_stale_write,
    a_version_is_swapped_once,
    versions_wrap_around,
    the_column_may_have_another_name,
);

async fn a_row_refuses_a_smaller_token<D: Db>(database: TestDatabase<D>) {
    for (number, passes) in [(0, true), (7, true), (7, true), (6, false), (8, true), (7, false)] {
        let outcome = database.fenced(number).execute(&database.pool).await;
        assert_eq!(outcome.is_ok(), passes, "{number}: {outcome:?}");
    }
    let refused = database.fenced(3).execute(&database.pool).await.unwrap_err();
    let Error::Stale { resource, token: mine, current } = refused else { panic!("{refused}") };
    assert!(resource.ends_with("_orders"));
    assert_eq!((mine, current), (token(3), token(8)));
    assert_eq!(database.written_tokens().await, [0, 7, 7, 8]);
    // Of any other row nothing was changed.
    let mut connection = database.pool.acquire().await.unwrap();
    let others = database.select(&mut connection, "SELECT note FROM {p}_orders WHERE id > 1").await;
    assert_eq!(others.unwrap(), [0]);
}

async fn a_repeated_write_succeeds<D: Db>(database: TestDatabase<D>) {
    for _ in 0..3 {
        database.fenced(5).execute(&database.pool).await.unwrap();
    }
    let mut transaction = database.pool.begin().await.unwrap();
    database.fenced(5).execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn an_absent_row_is_reported_missing<D: Db>(database: TestDatabase<D>) {
    let missing = database.fenced_row(5, 2).execute(&database.pool).await.unwrap_err();
    assert!(matches!(&missing, Error::Missing { table } if table.ends_with("_orders")), "{missing:?}");
    let missing = database.versioned_nowhere(0).execute(&database.pool).await.unwrap_err();
    assert!(matches!(missing, Error::Missing { .. }) && !missing.is_retryable(), "{missing:?}");
    assert_eq!(database.written_tokens().await, [0_i64; 0]);
}

async fn a_key_of_several_rows_is_an_error<D: Db>(database: TestDatabase<D>) {
    database.run("INSERT INTO {p}_orders (shop, id, note) VALUES ('here', 2, 0)").await;
    let mut transaction = database.pool.begin().await.unwrap();
    let both = database.fenced_shop(5).execute(&mut transaction).await.unwrap_err();
    assert!(matches!(both, Error::NotUnique { rows: 2, .. }), "{both:?}");
    transaction.rollback().await.unwrap();
    // Also when it is refused.
    database.run("UPDATE {p}_orders SET fence = 9").await;
    let both = database.fenced_shop(5).execute(&database.pool).await.unwrap_err();
    assert!(matches!(both, Error::NotUnique { rows: 2, .. }), "{both:?}");
}

async fn a_misspelt_column_is_an_error<D: Db>(database: TestDatabase<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    for update in [
        database.fenced(5).key("idd", 1),
        database.fenced(5).set("notes", 1),
        database.fenced(5).column("fenc"),
        // No row has this key, so one could take it for that.
        database.fenced_row(5, 2).key("idd", 1),
        database.fenced_row(5, 2).column("fenc"),
    ] {
        let told = format!("{update:?}");
        let error = update.execute(&database.pool).await.unwrap_err();
        assert!(matches!(&error, Error::Database(_)) && !error.is_retryable(), "{told}: {error:?}");
    }
    assert_eq!(database.written_tokens().await, [0_i64; 0]);
}

async fn invalid_updates_are_errors_and_are_not_sent<D: Db>(database: TestDatabase<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    for (update, expected) in [
        (database.update(1), "NoKey"),
        (database.fenced(1).set("NOTE", 1), "Twice"),
        (database.fenced(1).set("Fence", 1), "Twice"),
        (database.fenced(1).column("note"), "Twice"),
        (database.fenced(1).key("id; --", 1), "NotPlain"),
        (database.fenced(1).set("a` = 1, b", 1), "NotPlain"),
        (database.fenced(1).column("\"fence\""), "NotPlain"),
        (FencedUpdate::new("orders o", token(1)).key("id", 1), "NotPlain"),
    ] {
        let error = update.execute(&database.pool).await.unwrap_err();
        let Error::InvalidIdentifier(why) = &error else { panic!("{error:?}") };
        assert!(format!("{why:?}").starts_with(expected), "{why:?}");
    }
    assert_eq!(database.written_tokens().await, [0_i64; 0]);
}

async fn the_row_stays_locked_until_the_transaction_ends<D: Db>(database: TestDatabase<D>) {
    // The guard without a value to set: it protects the SQL after it.
    let mut stalled = database.pool.begin().await.unwrap();
    database.guard(1).execute(&mut stalled).await.unwrap();
    let next = tokio::spawn({
        let database = database.clone();
        async move { database.fenced(2).execute(&database.pool).await }
    });
    database.wait_for_waiter().await;
    assert!(!next.is_finished());
    database.write(&mut stalled, 1).await.unwrap();
    stalled.commit().await.unwrap();
    next.await.unwrap().unwrap();
    assert!(database.guard(1).execute(&database.pool).await.unwrap_err().is_stale());
    // The guard was a write, too, of the note that was there.
    assert_eq!(database.written_tokens().await, [0, 1, 2]);
}

async fn an_old_snapshot_never_accepts_a_stale_write<D: Db>(database: TestDatabase<D>) {
    for (version, level) in (0..).zip(D::SNAPSHOTS) {
        let old = database.pool_at(level).await;
        let step = 10 * version;
        database.fenced(step).execute(&database.pool).await.unwrap();
        let mut stale = old.begin().await.unwrap();
        assert_eq!(database.note(&mut stale).await, step, "{level}");
        database.fenced(step + 2).execute(&database.pool).await.unwrap();
        let refused = database.fenced(step + 1).execute(&mut stale).await.unwrap_err();
        assert!(refused.is_stale() || refused.is_retryable(), "{level}: {refused:?}");
        drop(stale);

        let mut stale = old.begin().await.unwrap();
        assert_eq!(database.note(&mut stale).await, step + 2, "{level}");
        database.versioned(version, step + 3).execute(&database.pool).await.unwrap();
        let refused = database.versioned(version, step + 4).execute(&mut stale).await.unwrap_err();
        assert!(refused.is_retryable(), "{level}: {refused:?}");
    }
}

async fn a_version_is_swapped_once<D: Db>(database: TestDatabase<D>) {
    assert_eq!(database.versioned(0, 10).execute(&database.pool).await.unwrap(), 1);
    assert_eq!(database.versioned(1, 11).execute(&database.pool).await.unwrap(), 2);
    let conflict = database.versioned(1, 12).execute(&database.pool).await.unwrap_err();
    assert!(conflict.is_retryable() && !conflict.is_stale());
    let Error::Conflict { table, expected, current } = conflict else { panic!("{conflict}") };
    assert!(table.ends_with("_orders"));
    assert_eq!((expected, current), (1, 2));
    assert_eq!(database.written_tokens().await, [10, 11]);
}

async fn versions_wrap_around<D: Db>(database: TestDatabase<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    let swap =
        |version| -> VersionedUpdate<'static, D> { database.update_at(version).column("note").key("id", 1) };
    database.run(&format!("UPDATE {{p}}_orders SET note = {}", i64::MAX)).await;
    assert_eq!(swap(i64::MAX).execute(&database.pool).await.unwrap(), i64::MIN);
    let conflict = swap(i64::MAX).execute(&database.pool).await.unwrap_err();
    assert!(matches!(conflict, Error::Conflict { current: i64::MIN, .. }), "{conflict:?}");
    assert_eq!(swap(i64::MIN).execute(&database.pool).await.unwrap(), i64::MIN + 1);
}

async fn the_column_may_have_another_name<D: Db>(database: TestDatabase<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    let fenced = |number| database.update(number).column("note").key("id", 1);
    fenced(4).execute(&database.pool).await.unwrap();
    assert!(fenced(3).execute(&database.pool).await.unwrap_err().is_stale());
    assert_eq!(database.written_tokens().await, [4]);
}
