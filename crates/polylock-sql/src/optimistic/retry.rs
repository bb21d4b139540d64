//! Reading again and trying again, a bounded number of times.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};

/// The first wait, about the time of a commit. They double up to [`LONGEST`], each with up to as much again at random.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(200);

/// Does `operation` until it succeeds, fails for a reason that is not `retryable`, or has been tried `attempts` times;
/// then the last error is the result. Waits a little longer each time, with jitter, 5 to 400 ms.
///
/// The operation must begin at the beginning each time: read the row, or begin the transaction. With an error type of
/// your own, look into it: `|error: &MyError| matches!(error, MyError::Row(error) if error.is_retryable())`.
///
/// Who needs this often is better off with a lock: everybody's attempts cost the database something, a waiter's do not.
///
/// # Errors
/// The last error of `operation`.
///
/// # Cancel safety
/// As `operation`.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use polylock_sql::optimistic::{Error, retry};
///
/// let mut failures = 0;
/// let result = retry(3, Error::is_retryable, || {
///     failures += 1;
///     async { Err::<(), _>(Error::Conflict { table: "items".into(), expected: 1, current: 2 }) }
/// });
/// assert!(result.await.is_err_and(|error| error.is_retryable()));
/// assert_eq!(failures, 3);
/// # });
/// ```
#[expect(
    clippy::disallowed_methods,
    reason = "a back-off is no deadline: that it stops with the machine is right"
)]
pub async fn retry<T, E, F, O>(
    attempts: usize,
    retryable: impl FnMut(&E) -> bool,
    operation: O,
) -> Result<T, E>
where
    O: FnMut() -> F,
    F: Future<Output = Result<T, E>>,
{
    let backoff = ExponentialBuilder::new()
        .with_jitter()
        .with_factor(2.0)
        .with_min_delay(SHORTEST)
        .with_max_delay(LONGEST)
        .with_max_times(attempts.saturating_sub(1));
    operation.retry(backoff).sleep(tokio::time::sleep).when(retryable).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails with these, one after the other; how often it was tried, and what came of it.
    async fn tried(attempts: usize, mut failures: Vec<u8>) -> (usize, Result<(), u8>) {
        let (mut count, retryable) = (0, |failure: &u8| *failure < 10);
        failures.reverse();
        let result = retry(attempts, retryable, || {
            count += 1;
            std::future::ready(failures.pop().map_or(Ok(()), Err))
        });
        let result = result.await;
        (count, result)
    }

    #[tokio::test]
    async fn ends_with_success_a_failure_that_stays_or_the_last_attempt() {
        assert_eq!(tried(5, vec![]).await, (1, Ok(())));
        assert_eq!(tried(5, vec![1, 2]).await, (3, Ok(())));
        assert_eq!(tried(5, vec![1, 10, 2]).await, (2, Err(10)));
        assert_eq!(tried(3, vec![1, 2, 3, 4]).await, (3, Err(3)));
        assert_eq!(tried(1, vec![1]).await, (1, Err(1)));
        assert_eq!(tried(0, vec![1]).await, (1, Err(1)));
    }
}
