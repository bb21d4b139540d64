//! The optimistic helpers on every database: what is stale lands nowhere, whoever stalls, at every isolation level.
#![allow(clippy::unwrap_used, reason = "tests")]

mod database;
mod example;
mod fences;
mod found_rows;
mod order;
mod updates;

use polylock_core::FencingToken;

fn token(number: i64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// Each test on each database, so that filters work by both.
macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        $crate::on_every_database!(sqlite, sqlx::Sqlite, $($test)*);
        $crate::on_every_database!(postgres, sqlx::Postgres, $($test)*);
        $crate::on_every_database!(mysql, sqlx::MySql, $($test)*);
    };
    ($name:ident, $database:ty, $($test:ident)*) => {
        mod $name {
            $(#[tokio::test]
            async fn $test() {
                if let Some(place) = $crate::database::Place::<$database>::make().await {
                    super::$test(place).await;
                }
            })*
        }
    };
}
use on_every_database;
