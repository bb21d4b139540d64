//! Logging of the failures of background statements, which no caller receives.

use std::{
    error::Error as _,
    sync::atomic::{AtomicBool, Ordering},
};

use polylock_core::Error;

/// One kind of background statement.
///
/// A failure that a later attempt cannot mend is logged as a warning with all its causes, once until the next success: it may
/// recur several times a second. A temporary failure is logged for debugging, because the operations of callers report it too.
#[derive(Debug)]
pub(crate) struct Background {
    /// The statement that failed, as the beginning of the message.
    failed_to: &'static str,
    warned: AtomicBool,
}

impl Background {
    pub(crate) const fn new(failed_to: &'static str) -> Self {
        Self { failed_to, warned: AtomicBool::new(false) }
    }

    pub(crate) fn succeeded(&self) {
        self.warned.store(false, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, error: &Error) {
        let (failed_to, causes) = (self.failed_to, causes(error));
        if error.is_temporary() || self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!("{failed_to}: {causes}");
        } else {
            tracing::warn!("{failed_to}: {causes}");
        }
    }
}

/// The error and its causes, without a cause that the one before it already states.
fn causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.ends_with(&words) {
            text.extend([": ", &words]);
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use polylock_core::{Fault, Operation, failure::At};

    use super::*;

    #[test]
    fn each_cause_is_shown_once() {
        let at = At { backend: "postgres", operation: Operation::Wait, endpoint: "database \"x\"" };
        let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let error = at.failed(Fault::Permanent, None, sqlx::Error::Io(reset()));
        let text = causes(&error);
        assert!(text.contains("could not wait") && text.contains("database \"x\""), "{text}");
        assert_eq!(text.matches(&reset().to_string()).count(), 1, "{text}");
    }
}
