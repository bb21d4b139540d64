//! The stores of a benchmark, and the end of its namespaces.

use std::{sync::Arc, time::Duration};

use polylock::{Clock, SystemClock};
use polylock_bench::{Error, Report, Subject};

use crate::{
    args::Global,
    exit::{Failure, INTERNAL},
    output::{Output, capture_warnings},
    signals::{self, Signals},
    store,
};

/// The time limit for the end of a store's background work.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the deletion of the namespaces of a store.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

/// The stores.
pub(super) struct Subjects(Vec<Arc<Subject>>);

impl Subjects {
    /// Determines the stores.
    pub(super) fn choose(global: &Global, output: &Output) -> Result<Self, Failure> {
        let stores = store::choose_all(global, output)?.into_iter();
        let subject = |store: store::ChosenStore| {
            Ok(Arc::new(Subject::new(store.config.into_url()?, store.display_name)?))
        };
        stores.map(subject).collect::<Result<_, Failure>>().map(Self)
    }

    /// Opens each store once, before anything is measured, and prints its warnings.
    pub(super) async fn check(&self, output: &Output) -> Result<(), Failure> {
        // Each of the many connections reports them again.
        capture_warnings();
        for subject in &self.0 {
            let locks = subject.open(&subject.create_namespace(), None).await?;
            // A store has reported all its warnings when it is closed.
            locks.close(CLOSE_TIMEOUT).await;
            let mut warnings = capture_warnings();
            warnings.dedup();
            warnings.iter().for_each(|warning| output.warning(format_args!("{}: {warning}", subject.name())));
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Subject>> {
        self.0.iter()
    }

    /// Returns the store number `number`, if there are so many.
    pub(super) fn get(&self, number: usize) -> Option<&Subject> {
        self.0.get(number).map(|subject| &**subject)
    }

    /// Returns the name of a store in tables: its scheme, with a number if the report has another store of that scheme.
    pub(super) fn label(&self, subject: &Subject, report: &Report) -> String {
        let scheme = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        let own = scheme(subject.name());
        let earlier = report.stores.iter().filter(|store| scheme(&store.store) == own).count();
        let all = self.0.iter().filter(|other| scheme(other.name()) == own).count();
        if all > 1 { format!("{own} {}", earlier + 1) } else { own }
    }

    /// Deletes the namespaces, and prints an alert if that fails. A second signal ends it. Returns true if all are deleted.
    pub(super) async fn clean_up(&self, output: &Output, signals: &mut Signals) -> bool {
        let mut is_clean = true;
        for subject in &self.0 {
            let was_opened = subject.was_opened();
            let problem = tokio::select! {
                biased;
                signal = signals.next_termination() => format!("ended by {}", signals::name(signal)),
                deleted = SystemClock.before(SystemClock.now() + CLEANUP_TIMEOUT, subject.clean_up()) => match deleted {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => error.chain(),
                    None => format!("not done after {}", polylock::duration::format(CLEANUP_TIMEOUT)),
                },
            };
            // A store that can't be opened has its own error.
            if !was_opened {
                continue;
            }
            is_clean = false;
            output.alert(format_args!(
                "{}: the namespaces could not be deleted: {problem}; delete the tables, keys, nodes or blobs with names that begin with {}",
                subject.name(),
                subject.prefix()
            ));
        }
        is_clean
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error.into(),
            error => Self::new(INTERNAL, error.chain()),
        }
    }
}
