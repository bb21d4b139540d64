//! The optimistic helpers on every database: no stale write commits, whichever writer stalls, at every isolation level.

mod database;
mod fences;
mod found_rows;
mod order;
mod script;
mod updates;

use polylock_core::FencingToken;

fn token(number: i64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// Each test on each database, so that filters work by both.
macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        $crate::optimistic::on_every_database!(sqlite, sqlx::Sqlite, $($test)*);
        $crate::optimistic::on_every_database!(postgres, sqlx::Postgres, $($test)*);
        $crate::optimistic::on_every_database!(mysql, sqlx::MySql, $($test)*);
    };
    ($name:ident, $database:ty, $($test:ident)*) => {
        mod $name {
            $(#[tokio::test]
            async fn $test() {
                if let Some(database) = $crate::optimistic::database::TestDatabase::<$database>::create().await {
                    super::$test(database).await;
                }
            })*
        }
    };
}
use on_every_database;
