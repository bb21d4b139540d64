//! What a store says when it refuses.

use std::{error::Error as _, time::Duration};

use polylock::{Error, Fault, Locks};

use crate::clock::{PATIENCE, now};

/// What kind of fault an error is, if it is one of the store's, and all that it and its causes say.
#[must_use]
pub fn told(error: &Error) -> (Option<Fault>, String) {
    let fault = if let Error::Unavailable(error) = error { Some(error.fault) } else { None };
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(next) = cause {
        text.extend([": ", &next.to_string()]);
        cause = next.source();
    }
    (fault, text)
}

/// Why the store at `url` can't be opened.
///
/// # Panics
/// If it can.
pub async fn refusal(url: &str) -> (Option<Fault>, String) {
    told(&refused(url).await)
}

/// The same, with all that `Debug` shows behind it; and after which time that is known.
///
/// # Panics
/// If it can be opened.
pub async fn timed_refusal(url: &str) -> (Option<Fault>, String, Duration) {
    let began = now();
    let error = refused(url).await;
    let took = now().since(began);
    let (fault, text) = told(&error);
    println!("after {took:.1?}: {fault:?}: {text}");
    (fault, format!("{text} {error:?}"), took)
}

async fn refused(url: &str) -> Error {
    let opened = tokio::time::timeout(PATIENCE, Locks::builder(url).outage(Duration::ZERO).connect()).await;
    match opened.unwrap_or_else(|_| panic!("not known after {PATIENCE:?}")) {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    }
}
