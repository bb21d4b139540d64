//! Options for connections, which a callback may complete for each connection.

use std::{fmt, pin::Pin, sync::Arc};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Completing<O> = Pin<Box<dyn Future<Output = Result<O, BoxError>> + Send>>;

/// The options for connections, and the callback that completes them.
#[derive(Clone)]
pub(crate) struct Source<O> {
    pub(crate) options: O,
    complete: Option<Arc<dyn Fn(O) -> Completing<O> + Send + Sync>>,
}

impl<O> fmt::Debug for Source<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options contain the password.
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// The failure of the callback for credentials.
#[derive(Debug, thiserror::Error)]
#[error("no credentials: {0}")]
struct NoCredentials(#[source] BoxError);

impl<O: Clone + Send + Sync> Source<O> {
    pub(crate) const fn new(options: O) -> Self {
        Self { options, complete: None }
    }

    /// Sets the callback that changes the options of every connection before it is opened.
    pub(crate) fn complete_with<F>(&mut self, complete: impl Fn(O) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<O, BoxError>> + Send + 'static,
    {
        self.complete = Some(Arc::new(move |options| Box::pin(complete(options))));
    }

    /// Returns the same source with other options, for connections to another endpoint.
    #[cfg(feature = "postgres")]
    pub(crate) fn with_options(&self, options: O) -> Self {
        Self { options, ..self.clone() }
    }

    /// Returns the options for the next connection.
    ///
    /// # Errors
    /// The callback's error as an I/O error, because the callback may succeed the next time.
    pub(crate) async fn next(&self) -> Result<O, sqlx::Error> {
        let options = self.options.clone();
        Ok(match &self.complete {
            Some(complete) => {
                complete(options).await.map_err(|error| std::io::Error::other(NoCredentials(error)))?
            }
            None => options,
        })
    }
}

/// Returns true if `error` is an error of the callback.
pub(crate) fn is_missing_credentials(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoCredentials>())
}
