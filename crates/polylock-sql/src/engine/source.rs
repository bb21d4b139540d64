//! Where connections come from: options, which a callback may complete for each connection.

use std::{fmt, pin::Pin, sync::Arc};

use sqlx::ConnectOptions;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Completing<O> = Pin<Box<dyn Future<Output = Result<O, BoxError>> + Send>>;

/// Options for connections.
#[derive(Clone)]
pub(crate) struct Source<O> {
    pub(crate) options: O,
    completed: Option<Arc<dyn Fn(O) -> Completing<O> + Send + Sync>>,
}

impl<O> fmt::Debug for Source<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options show the password.
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// The callback for credentials failed.
#[derive(Debug, thiserror::Error)]
#[error("no credentials: {0}")]
struct NoCredentials(#[source] BoxError);

impl<O: ConnectOptions> Source<O> {
    pub(crate) const fn new(options: O) -> Self {
        Self { options, completed: None }
    }

    /// Has `complete` change the options of every connection before it is made.
    pub(crate) fn completed_by<F>(&mut self, complete: impl Fn(O) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<O, BoxError>> + Send + 'static,
    {
        self.completed = Some(Arc::new(move |options| Box::pin(complete(options))));
    }

    /// The same for connections that lead elsewhere.
    #[cfg(feature = "postgres")]
    pub(crate) fn at(&self, options: O) -> Self {
        Self { options, ..self.clone() }
    }

    /// The options of the next connection.
    ///
    /// # Errors
    /// What the callback returns, as an I/O error: it may succeed the next time.
    pub(crate) async fn next(&self) -> Result<O, sqlx::Error> {
        let options = self.options.clone();
        let completed = match &self.completed {
            Some(complete) => {
                complete(options).await.map_err(|error| std::io::Error::other(NoCredentials(error)))?
            }
            None => options,
        };
        Ok(completed.disable_statement_logging())
    }
}

/// Whether `error` is that of the callback.
pub(crate) fn lacks_credentials(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoCredentials>())
}
