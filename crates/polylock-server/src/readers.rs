//! The readers of events of one caller, so that one caller does not take the places of all others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use polylock_core::sync::lock;
use polylock_protocol::Problem;

use crate::watches::WATCHES;

/// The number of readers of events at the same time. Each event is sent to all of them.
pub(crate) const READERS: usize = 1024;

/// The readers of one caller, by prefix.
#[derive(Debug)]
pub(crate) struct Readers {
    /// The greatest number of readers at the same time, and that of their different prefixes.
    limits: (usize, usize),
    count_by_prefix: Mutex<HashMap<String, usize>>,
}

/// The place of one reader.
#[derive(Debug)]
pub(crate) struct Place {
    readers: Arc<Readers>,
    prefix: String,
}

impl Readers {
    /// Returns the readers of one caller, which has a part of the server's places.
    pub(crate) fn of_one() -> Self {
        Self { limits: (READERS / 2, WATCHES / 4), count_by_prefix: Mutex::default() }
    }

    /// Returns the readers of a service without callers, which have all places.
    pub(crate) fn of_all() -> Self {
        Self { limits: (READERS, WATCHES), count_by_prefix: Mutex::default() }
    }

    /// Takes a place for a reader of `prefix`.
    pub(crate) fn enter(self: &Arc<Self>, prefix: &str) -> Result<Place, Problem> {
        let mut prefixes = lock(&self.count_by_prefix);
        let refused = |what: String| {
            let detail = format!("the caller has {what}: end one, or use one of them");
            Err(Problem::new("too-many-requests", "the caller has too many readers of events", 429, detail))
        };
        let (most, different) = self.limits;
        if prefixes.values().sum::<usize>() >= most {
            return refused(format!("{most} readers"));
        }
        if !prefixes.contains_key(prefix) && prefixes.len() >= different {
            return refused(format!("readers of {different} different prefixes"));
        }
        *prefixes.entry(prefix.to_owned()).or_default() += 1;
        Ok(Place { readers: self.clone(), prefix: prefix.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut prefixes = lock(&self.readers.count_by_prefix);
        if let Some(count) = prefixes.get_mut(&self.prefix) {
            *count -= 1;
            if *count == 0 {
                prefixes.remove(&self.prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::{Method, StatusCode};

    use super::*;
    use crate::serve_tests::{request, restricted, send};

    const PREFIXES: usize = WATCHES / 4;

    #[test]
    fn the_places_of_a_caller_are_free_again_after_its_readers() {
        let readers = Arc::new(Readers::of_one());
        let places: Vec<_> =
            (0..PREFIXES).map(|number| readers.enter(&number.to_string()).unwrap()).collect();
        assert!(readers.enter("other").is_err());
        let second = readers.enter("0").unwrap();
        drop(places);
        let others: Vec<_> =
            (1..PREFIXES).map(|number| readers.enter(&format!("o{number}")).unwrap()).collect();
        assert!(readers.enter("other").is_err(), "the second reader of 0 is still there");
        drop((second, others));
        let many: Vec<_> = (0..READERS / 2).map(|_| readers.enter("n").unwrap()).collect();
        assert!(readers.enter("n").is_err());
        drop(many);
        assert!(lock(&readers.count_by_prefix).is_empty());
    }

    #[tokio::test]
    async fn a_caller_reads_the_events_of_its_prefixes_and_leaves_places_to_others() {
        let routes = restricted(&[
            ("nobody", "allow = []"),
            ("a", r#"allow = [{ prefix = "a/", rights = ["exclusive"] }]"#),
            ("operator", r#"allow = [{ prefix = "", rights = ["inspect", "break"] }]"#),
        ]);
        let read = async |caller: &str, prefix: &str| {
            let path = format!("/v1/events?prefix={prefix}");
            send(&routes, request(Method::GET, &path, Some(caller), None)).await
        };
        assert_eq!(read("nobody", "").await.status(), StatusCode::FORBIDDEN);
        assert_eq!(read("a", "b").await.status(), StatusCode::FORBIDDEN);
        // The events of its own locks alone.
        assert_eq!(read("a", "").await.status(), StatusCode::OK);
        let mut hostile = Vec::new();
        for number in 0..2 * PREFIXES {
            hostile.push(read("a", &format!("a/{number}")).await);
        }
        let admitted = hostile.iter().filter(|reply| reply.status() == StatusCode::OK).count();
        assert_eq!(admitted, PREFIXES);
        assert_eq!(read("operator", "").await.status(), StatusCode::OK);
    }
}
