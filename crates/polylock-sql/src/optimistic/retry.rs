//! Bounded retries of an operation.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};

/// The first pause, about the time of a commit. The pauses double up to [`LONGEST`]; each is extended by a random time of up to
/// its own length.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(200);

/// Runs `operation` until it succeeds, fails with an error that is not `retryable`, or has been tried `attempts` times; then
/// returns the last error. The pauses between the attempts grow, with jitter, from 5 to 400 ms.
///
/// Each attempt must start from the beginning: read the row again, or begin a new transaction. For an error type of your own,
/// match the inner error: `|error: &MyError| matches!(error, MyError::Row(error) if error.is_retryable())`.
///
/// If retries are frequent, a lock is better: each failed attempt costs the database work, a waiter does not.
///
/// # Errors
/// The last error of `operation`.
///
/// # Cancel safety
/// That of `operation`.
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

    /// Fails with these errors, one after the other. Returns the number of attempts and the result.
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
    async fn ends_with_success_a_permanent_failure_or_the_last_attempt() {
        assert_eq!(tried(5, vec![]).await, (1, Ok(())));
        assert_eq!(tried(5, vec![1, 2]).await, (3, Ok(())));
        assert_eq!(tried(5, vec![1, 10, 2]).await, (2, Err(10)));
        assert_eq!(tried(3, vec![1, 2, 3, 4]).await, (3, Err(3)));
        assert_eq!(tried(1, vec![1]).await, (1, Err(1)));
        assert_eq!(tried(0, vec![1]).await, (1, Err(1)));
    }
}
