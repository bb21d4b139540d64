//! Rows that carry a token or a version.

use polylock_sql::optimistic::{Error, FencedUpdate, VersionedUpdate};
use sqlx::{Encode, Type};

use super::{
    database::{Db, Place},
    on_every_database, token,
};

on_every_database!(
    a_row_refuses_a_smaller_token,
    the_same_write_again_succeeds,
    a_row_that_is_not_there_is_missing,
    a_key_of_several_rows_is_told,
    a_misspelt_column_is_an_error,
    what_can_not_be_right_is_told_and_not_sent,
    the_row_stays_locked_for_what_follows,
    an_old_snapshot_never_lets_a_stale_write_pass,
    a_version_is_swapped_once,
    versions_go_round,
    the_column_may_have_another_name,
);

async fn a_row_refuses_a_smaller_token<D: Db>(place: Place<D>) {
    for (number, passes) in [(0, true), (7, true), (7, true), (6, false), (8, true), (7, false)] {
        let outcome = place.fenced(number).execute(&place.pool).await;
        assert_eq!(outcome.is_ok(), passes, "{number}: {outcome:?}");
    }
    let refused = place.fenced(3).execute(&place.pool).await.unwrap_err();
    let Error::Stale { resource, token: mine, current } = refused else { panic!("{refused}") };
    assert!(resource.ends_with("_orders"));
    assert_eq!((mine, current), (token(3), token(8)));
    assert_eq!(place.landed().await, [0, 7, 7, 8]);
    // Of any other row nothing was changed.
    let mut connection = place.pool.acquire().await.unwrap();
    let others = place.select(&mut connection, "SELECT note FROM {p}_orders WHERE id > 1").await;
    assert_eq!(others.unwrap(), [0]);
}

async fn the_same_write_again_succeeds<D: Db>(place: Place<D>) {
    for _ in 0..3 {
        place.fenced(5).execute(&place.pool).await.unwrap();
    }
    let mut transaction = place.pool.begin().await.unwrap();
    place.fenced(5).execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn a_row_that_is_not_there_is_missing<D: Db>(place: Place<D>) {
    let missing = place.fenced_row(5, 2).execute(&place.pool).await.unwrap_err();
    assert!(matches!(&missing, Error::Missing { table } if table.ends_with("_orders")), "{missing:?}");
    let missing = place.versioned_nowhere(0).execute(&place.pool).await.unwrap_err();
    assert!(matches!(missing, Error::Missing { .. }) && !missing.is_retryable(), "{missing:?}");
    assert_eq!(place.landed().await, [0_i64; 0]);
}

async fn a_key_of_several_rows_is_told<D: Db>(place: Place<D>) {
    place.run("INSERT INTO {p}_orders (shop, id, note) VALUES ('here', 2, 0)").await;
    let mut transaction = place.pool.begin().await.unwrap();
    let both = place.fenced_shop(5).execute(&mut transaction).await.unwrap_err();
    assert!(matches!(both, Error::NotUnique { rows: 2, .. }), "{both:?}");
    transaction.rollback().await.unwrap();
    // Also when it is refused.
    place.run("UPDATE {p}_orders SET fence = 9").await;
    let both = place.fenced_shop(5).execute(&place.pool).await.unwrap_err();
    assert!(matches!(both, Error::NotUnique { rows: 2, .. }), "{both:?}");
}

async fn a_misspelt_column_is_an_error<D: Db>(place: Place<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    for update in [
        place.fenced(5).key("idd", 1),
        place.fenced(5).set("notes", 1),
        place.fenced(5).column("fenc"),
        // No row has this key, so one could take it for that.
        place.fenced_row(5, 2).key("idd", 1),
        place.fenced_row(5, 2).column("fenc"),
    ] {
        let told = format!("{update:?}");
        let error = update.execute(&place.pool).await.unwrap_err();
        assert!(matches!(&error, Error::Database(_)) && !error.is_retryable(), "{told}: {error:?}");
    }
    assert_eq!(place.landed().await, [0_i64; 0]);
}

async fn what_can_not_be_right_is_told_and_not_sent<D: Db>(place: Place<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    for (update, expected) in [
        (place.update(1), "NoKey"),
        (place.fenced(1).set("NOTE", 1), "Twice"),
        (place.fenced(1).set("Fence", 1), "Twice"),
        (place.fenced(1).column("note"), "Twice"),
        (place.fenced(1).key("id; --", 1), "NotPlain"),
        (place.fenced(1).set("a` = 1, b", 1), "NotPlain"),
        (place.fenced(1).column("\"fence\""), "NotPlain"),
        (FencedUpdate::new("orders o", token(1)).key("id", 1), "NotPlain"),
    ] {
        let error = update.execute(&place.pool).await.unwrap_err();
        let Error::InvalidIdentifier(why) = &error else { panic!("{error:?}") };
        assert!(format!("{why:?}").starts_with(expected), "{why:?}");
    }
    assert_eq!(place.landed().await, [0_i64; 0]);
}

async fn the_row_stays_locked_for_what_follows<D: Db>(place: Place<D>) {
    // The guard alone, without anything to set: what it protects follows in other SQL.
    let mut stalled = place.pool.begin().await.unwrap();
    place.guard(1).execute(&mut stalled).await.unwrap();
    let next = tokio::spawn({
        let place = place.clone();
        async move { place.fenced(2).execute(&place.pool).await }
    });
    place.somebody_waits().await;
    assert!(!next.is_finished());
    place.write(&mut stalled, 1).await.unwrap();
    stalled.commit().await.unwrap();
    next.await.unwrap().unwrap();
    assert!(place.guard(1).execute(&place.pool).await.unwrap_err().is_stale());
    // The guard was a write, too, of the note that was there.
    assert_eq!(place.landed().await, [0, 1, 2]);
}

async fn an_old_snapshot_never_lets_a_stale_write_pass<D: Db>(place: Place<D>) {
    for (version, level) in (0..).zip(D::SNAPSHOTS) {
        let old = place.pool_at(level).await;
        let step = 10 * version;
        place.fenced(step).execute(&place.pool).await.unwrap();
        let mut stale = old.begin().await.unwrap();
        assert_eq!(place.note(&mut stale).await, step, "{level}");
        place.fenced(step + 2).execute(&place.pool).await.unwrap();
        let refused = place.fenced(step + 1).execute(&mut stale).await.unwrap_err();
        assert!(refused.is_stale() || refused.is_retryable(), "{level}: {refused:?}");
        drop(stale);

        let mut stale = old.begin().await.unwrap();
        assert_eq!(place.note(&mut stale).await, step + 2, "{level}");
        place.versioned(version, step + 3).execute(&place.pool).await.unwrap();
        let refused = place.versioned(version, step + 4).execute(&mut stale).await.unwrap_err();
        assert!(refused.is_retryable(), "{level}: {refused:?}");
    }
}

async fn a_version_is_swapped_once<D: Db>(place: Place<D>) {
    assert_eq!(place.versioned(0, 10).execute(&place.pool).await.unwrap(), 1);
    assert_eq!(place.versioned(1, 11).execute(&place.pool).await.unwrap(), 2);
    let conflict = place.versioned(1, 12).execute(&place.pool).await.unwrap_err();
    assert!(conflict.is_retryable() && !conflict.is_stale());
    let Error::Conflict { table, expected, current } = conflict else { panic!("{conflict}") };
    assert!(table.ends_with("_orders"));
    assert_eq!((expected, current), (1, 2));
    assert_eq!(place.landed().await, [10, 11]);
}

async fn versions_go_round<D: Db>(place: Place<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    let swap =
        |version| -> VersionedUpdate<'static, D> { place.update_at(version).column("note").key("id", 1) };
    place.run(&format!("UPDATE {{p}}_orders SET note = {}", i64::MAX)).await;
    assert_eq!(swap(i64::MAX).execute(&place.pool).await.unwrap(), i64::MIN);
    let conflict = swap(i64::MAX).execute(&place.pool).await.unwrap_err();
    assert!(matches!(conflict, Error::Conflict { current: i64::MIN, .. }), "{conflict:?}");
    assert_eq!(swap(i64::MIN).execute(&place.pool).await.unwrap(), i64::MIN + 1);
}

async fn the_column_may_have_another_name<D: Db>(place: Place<D>)
where
    i64: Encode<'static, D> + Type<D>,
{
    let fenced = |number| place.update(number).column("note").key("id", 1);
    fenced(4).execute(&place.pool).await.unwrap();
    assert!(fenced(3).execute(&place.pool).await.unwrap_err().is_stale());
    assert_eq!(place.landed().await, [4]);
}
