//! The errors of stores.

use std::{error::Error as _, time::Duration};

use polylock::{Error, Fault, Locks};

use crate::clock::{TIMEOUT, now};

/// Returns the class of an error of the store (`None` for other errors), and its text with the texts of all its causes.
#[must_use]
pub fn describe(error: &Error) -> (Option<Fault>, String) {
    let fault = if let Error::Unavailable(error) = error { Some(error.fault) } else { None };
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(next) = cause {
        text.extend([": ", &next.to_string()]);
        cause = next.source();
    }
    (fault, text)
}

/// Opens the store at `url`, which must fail, and [describes](describe) the error.
///
/// # Panics
/// If the store opens.
pub async fn refusal(url: &str) -> (Option<Fault>, String) {
    describe(&open_error(url).await)
}

/// Like [`refusal`], with the output of `Debug` appended to the text, and with the time that it took.
///
/// # Panics
/// If the store opens.
pub async fn timed_refusal(url: &str) -> (Option<Fault>, String, Duration) {
    let began = now();
    let error = open_error(url).await;
    let took = now().since(began);
    let (fault, text) = describe(&error);
    println!("refused after {took:.1?}: {fault:?}: {text}");
    (fault, format!("{text} {error:?}"), took)
}

async fn open_error(url: &str) -> Error {
    let opened = tokio::time::timeout(TIMEOUT, Locks::builder(url).outage(Duration::ZERO).connect()).await;
    match opened.unwrap_or_else(|_| panic!("opening the store has not failed within {TIMEOUT:?}")) {
        Ok(_) => panic!("expected an error, but the store opens"),
        Err(error) => error,
    }
}
