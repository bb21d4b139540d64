//! Many writers at once: what landed, in the order in which it landed, was written with growing tokens.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use polylock_sql::optimistic::{Error, retry};
use tokio::sync::{Barrier, Mutex};

use super::{
    database::{Db, Place},
    on_every_database, token,
};

on_every_database!(
    fenced_transactions_land_in_the_order_of_their_tokens,
    fenced_updates_land_in_the_order_of_their_tokens,
    planted_writes_without_a_fence_are_caught,
    versioned_updates_lose_nothing,
    planted_writes_without_a_version_are_caught,
);

const WRITERS: usize = 16;
const TOKENS: i64 = 240;

/// Tokens that grow on the whole, as those of holders do who come one after the other and are late by chance.
fn tokens() -> Vec<i64> {
    let chance = RandomState::new();
    let mut tokens: Vec<i64> = (1..=TOKENS).collect();
    tokens.sort_by_key(|token| *token + i64::try_from(chance.hash_one(token) % 24).unwrap());
    tokens
}

/// Many at once write with one token after the other; which of them were accepted.
async fn storm<D: Db, F>(
    place: &Place<D>,
    write: impl Fn(Place<D>, i64) -> F + Clone + Send + Sync + 'static,
) -> Vec<i64>
where
    F: Future<Output = Result<(), Error>> + Send,
{
    let tokens = Arc::new(Mutex::new(tokens().into_iter()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (place, tokens, write) = (place.clone(), tokens.clone(), write.clone());
            tokio::spawn(async move {
                let mut accepted = Vec::new();
                while let Some(token) = { tokens.lock().await.next() } {
                    match retry(100, Error::is_retryable, || write(place.clone(), token)).await {
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

/// What must be true of any such storm.
fn check(landed: &[i64], mut accepted: Vec<i64>) -> Result<(), String> {
    if let Some(late) = landed.windows(2).find(|pair| pair[1] < pair[0]) {
        return Err(format!("a write with token {} landed after one with {}", late[1], late[0]));
    }
    if landed.last() != Some(&TOKENS) {
        return Err(format!("the last write is not that of the greatest token, {TOKENS}: {landed:?}"));
    }
    accepted.sort_unstable();
    // They have just been seen to be sorted.
    if accepted != landed {
        return Err(format!("accepted were {accepted:?}, landed have {landed:?}"));
    }
    Ok(())
}

async fn fenced_transactions_land_in_the_order_of_their_tokens<D: Db>(place: Place<D>) {
    let accepted = storm(&place, |place: Place<D>, number| async move {
        let mut transaction = place.fences.begin(&place.pool, "orders/1", token(number)).await?;
        place.write(&mut transaction, number).await?;
        Ok(transaction.commit().await?)
    });
    let accepted = accepted.await;
    check(&place.landed().await, accepted).unwrap();
}

async fn fenced_updates_land_in_the_order_of_their_tokens<D: Db>(place: Place<D>) {
    let accepted =
        storm(
            &place,
            |place: Place<D>, number| async move { place.fenced(number).execute(&place.pool).await },
        );
    let accepted = accepted.await;
    check(&place.landed().await, accepted).unwrap();
}

async fn planted_writes_without_a_fence_are_caught<D: Db>(place: Place<D>) {
    let accepted = storm(&place, |place: Place<D>, number| async move {
        Ok(place.write(&mut *place.pool.acquire().await?, number).await?)
    });
    let accepted = accepted.await;
    let caught = check(&place.landed().await, accepted).unwrap_err();
    assert!(caught.contains("landed after"), "{caught}");
}

/// What one of many adds to the number, again and again.
const ADDITIONS: i64 = 10;

/// Reads the number and its version.
async fn read<D: Db>(place: &Place<D>) -> Result<(i64, i64), Error> {
    let mut connection = place.pool.acquire().await?;
    // In one look: two looks could see two versions.
    let both = "SELECT note FROM {p}_orders WHERE id = 1
                UNION ALL SELECT coalesce(version, 0) FROM {p}_orders WHERE id = 1";
    let both = place.select(&mut connection, both).await?;
    Ok((both[0], both[1]))
}

async fn versioned_updates_lose_nothing<D: Db>(place: Place<D>) {
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let place = place.clone();
            tokio::spawn(async move {
                for _ in 0..ADDITIONS {
                    let added = retry(1000, Error::is_retryable, || async {
                        let (number, version) = read(&place).await?;
                        place.versioned(version, number + 1).execute(&place.pool).await
                    });
                    added.await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(read(&place).await.unwrap(), (8 * ADDITIONS, 8 * ADDITIONS));
    assert_eq!(place.landed().await, (1..=8 * ADDITIONS).collect::<Vec<_>>());
}

async fn planted_writes_without_a_version_are_caught<D: Db>(place: Place<D>) {
    let all_have_read = Arc::new(Barrier::new(2));
    let writers = [(); 2].map(|()| {
        let (place, all_have_read) = (place.clone(), all_have_read.clone());
        tokio::spawn(async move {
            let (number, _) = read(&place).await.unwrap();
            all_have_read.wait().await;
            place.write(&mut *place.pool.acquire().await.unwrap(), number + 1).await.unwrap();
        })
    });
    for writer in writers {
        writer.await.unwrap();
    }
    assert_ne!(place.landed().await, [1, 2]);
}
