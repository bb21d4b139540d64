//! Many concurrent writers: the committed writes have growing tokens in commit order.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use polylock_sql::optimistic::{Error, retry};
use tokio::sync::{Barrier, Mutex};

use super::{
    database::{Db, TestDatabase},
    on_every_database, token,
};

on_every_database!(
    fenced_transactions_commit_in_the_order_of_their_tokens,
    fenced_updates_commit_in_the_order_of_their_tokens,
    planted_writes_without_a_fence_are_caught,
    versioned_updates_lose_no_write,
    planted_writes_without_a_version_are_caught,
);

const WRITERS: usize = 16;
const TOKENS: i64 = 240;

/// Returns tokens in roughly growing order, as those of successive holders with random delays.
fn tokens() -> Vec<i64> {
    let chance = RandomState::new();
    let mut tokens: Vec<i64> = (1..=TOKENS).collect();
    tokens.sort_by_key(|token| *token + i64::try_from(chance.hash_one(token) % 24).unwrap());
    tokens
}

/// Many at once write with one token after the other; which of them were accepted.
async fn run_writers<D: Db, F>(
    database: &TestDatabase<D>,
    write: impl Fn(TestDatabase<D>, i64) -> F + Clone + Send + Sync + 'static,
) -> Vec<i64>
where
    F: Future<Output = Result<(), Error>> + Send,
{
    let tokens = Arc::new(Mutex::new(tokens().into_iter()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (database, tokens, write) = (database.clone(), tokens.clone(), write.clone());
            tokio::spawn(async move {
                let mut accepted = Vec::new();
                while let Some(token) = { tokens.lock().await.next() } {
                    match retry(100, Error::is_retryable, || write(database.clone(), token)).await {
                        Ok(()) => accepted.push(token),
                        Err(error) => assert!(error.is_stale(), "{error:?}"),
                    }
                }
                accepted
            })
        })
        .collect();
    let mut accepted = Vec::new();
    for writer in writers {
        accepted.extend(writer.await.unwrap());
    }
    accepted
}

/// Checks the properties of every such run.
fn check(written: &[i64], mut accepted: Vec<i64>) -> Result<(), String> {
    if let Some(late) = written.windows(2).find(|pair| pair[1] < pair[0]) {
        return Err(format!("a write with token {} written after one with {}", late[1], late[0]));
    }
    if written.last() != Some(&TOKENS) {
        return Err(format!("the last write is not that of the greatest token, {TOKENS}: {written:?}"));
    }
    accepted.sort_unstable();
    // They have just been seen to be sorted.
    if accepted != written {
        return Err(format!("accepted were {accepted:?}, written have {written:?}"));
    }
    Ok(())
}

async fn fenced_transactions_commit_in_the_order_of_their_tokens<D: Db>(database: TestDatabase<D>) {
    let accepted = run_writers(&database, |database: TestDatabase<D>, number| async move {
        let mut transaction = database.fences.begin(&database.pool, "orders/1", token(number)).await?;
        database.write(&mut transaction, number).await?;
        Ok(transaction.commit().await?)
    });
    let accepted = accepted.await;
    check(&database.written_tokens().await, accepted).unwrap();
}

async fn fenced_updates_commit_in_the_order_of_their_tokens<D: Db>(database: TestDatabase<D>) {
    let accepted = run_writers(&database, |database: TestDatabase<D>, number| async move {
        database.fenced(number).execute(&database.pool).await
    });
    let accepted = accepted.await;
    check(&database.written_tokens().await, accepted).unwrap();
}

async fn planted_writes_without_a_fence_are_caught<D: Db>(database: TestDatabase<D>) {
    let accepted = run_writers(&database, |database: TestDatabase<D>, number| async move {
        Ok(database.write(&mut *database.pool.acquire().await?, number).await?)
    });
    let accepted = accepted.await;
    let caught = check(&database.written_tokens().await, accepted).unwrap_err();
    assert!(caught.contains("written after"), "{caught}");
}

/// The number of additions of each writer.
const ADDITIONS: i64 = 10;

/// Reads the number and its version.
async fn read<D: Db>(database: &TestDatabase<D>) -> Result<(i64, i64), Error> {
    let mut connection = database.pool.acquire().await?;
    // In one statement: two could read two versions.
    let both = "SELECT note FROM {p}_orders WHERE id = 1
                UNION ALL SELECT coalesce(version, 0) FROM {p}_orders WHERE id = 1";
    let both = database.select(&mut connection, both).await?;
    Ok((both[0], both[1]))
}

async fn versioned_updates_lose_no_write<D: Db>(database: TestDatabase<D>) {
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let database = database.clone();
            tokio::spawn(async move {
                for _ in 0..ADDITIONS {
                    let added = retry(1000, Error::is_retryable, || async {
                        let (number, version) = read(&database).await?;
                        database.versioned(version, number + 1).execute(&database.pool).await
                    });
                    added.await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(read(&database).await.unwrap(), (8 * ADDITIONS, 8 * ADDITIONS));
    assert_eq!(database.written_tokens().await, (1..=8 * ADDITIONS).collect::<Vec<_>>());
}

async fn planted_writes_without_a_version_are_caught<D: Db>(database: TestDatabase<D>) {
    let all_have_read = Arc::new(Barrier::new(2));
    let writers = [(); 2].map(|()| {
        let (database, all_have_read) = (database.clone(), all_have_read.clone());
        tokio::spawn(async move {
            let (number, _) = read(&database).await.unwrap();
            all_have_read.wait().await;
            database.write(&mut *database.pool.acquire().await.unwrap(), number + 1).await.unwrap();
        })
    });
    for writer in writers {
        writer.await.unwrap();
    }
    assert_ne!(database.written_tokens().await, [1, 2]);
}
