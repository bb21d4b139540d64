//! Passwords, and the request ids that would allow another process to release a lock, do not appear in any output.

use std::{fmt::Debug, time::Duration};

use polylock_core::{Error, Operation, OwnerId, RequestId};

use crate::{
    ManualClock,
    faults::{Flaky, Gate, InjectedFault, Recording},
    need::Need,
    trace::TraceCapture,
    trial::{
        Outcome, Trial, Unsupported, acquired, acquired_by, join, lock_name, pass, released, soon, tried,
        until, watched,
    },
};

/// Returns all encodings in which a secret could appear.
fn forms(trial: &Trial, ids: &[RequestId]) -> Vec<String> {
    let mut forms = trial.secrets();
    for secret in trial.secrets() {
        forms.push(secret.bytes().map(|byte| format!("%{byte:02X}")).collect());
        forms.push(secret.bytes().map(|byte| format!("%{byte:02x}")).collect());
        forms.push(hex(secret.bytes()));
    }
    for id in ids {
        let bytes = id.to_bytes();
        let number = u128::from_be_bytes(bytes);
        let hex_text = hex(bytes);
        forms.extend([number.to_string(), i128::from_be_bytes(bytes).to_string()]);
        forms.extend([hex(bytes.into_iter().rev()), u128::from_le_bytes(bytes).to_string()]);
        for half in [&bytes[..8], &bytes[8..]] {
            let half: [u8; 8] = half.try_into().expect("eight bytes");
            forms.extend([
                hex(half),
                u64::from_be_bytes(half).to_string(),
                i64::from_be_bytes(half).to_string(),
            ]);
        }
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex_text[part]);
        forms.push(parts.join("-"));
        forms.push(format!("{bytes:?}"));
        forms.push(bytes.map(|byte| format!("\\x{byte:02x}")).concat());
        forms.push(hex_text);
    }
    // A half that happens to be tiny would be found everywhere.
    forms.retain(|form| form.len() > 5);
    forms
}

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fails if a secret appears in `text`, in upper or lower case.
fn scan(forms: &[String], what: &str, text: &str) {
    let lower = text.to_lowercase();
    for form in forms {
        assert!(!lower.contains(&form.to_lowercase()), "{what} contains a secret: {form}");
    }
}

fn show(shown: &mut Vec<(String, String)>, what: &str, value: &impl Debug) {
    shown.push((what.to_owned(), format!("{value:?} {value:#?}")));
}

fn show_error(shown: &mut Vec<(String, String)>, what: &str, error: Option<Error>) {
    let error = error.unwrap_or_else(|| panic!("expected an error: {what}"));
    show(shown, what, &error);
    shown.push((what.to_owned(), error.chain()));
}

pub(super) async fn do_not_appear_in_public_output(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let store = trial.store().await;
    let mut shown = Vec::new();
    show(&mut shown, "the store", &store);
    let (store, flaky) = watched(store, Flaky::new);
    let (store, gate) = watched(store, Gate::new);
    let (store, recording) = watched(store, Recording::new);
    let locks = trial.open_by(store.clone(), &clock);
    show(&mut shown, "the locks", &locks);
    show(&mut shown, "the capabilities", locks.capabilities());
    let owner = OwnerId::unique();
    show(&mut shown, "the lock", &locks.lock("n").reentrant(&owner).label("label"));
    let guard = acquired_by(&clock, locks.lock("n").reentrant(&owner).label("label")).await;
    show(&mut shown, "the guard", &guard);
    show(&mut shown, "the store in use", &store);
    show(&mut shown, "the locks in use", &locks);
    if trial.lacks(Need::Inspect).await.is_none() {
        show(&mut shown, "inspect", &soon("inspect", locks.inspect("n")).await);
        show(&mut shown, "list", &soon("list", locks.list("")).await);
    }
    let busy = soon("busy", locks.lock("n").wait(Duration::ZERO).acquire()).await;
    show_error(&mut shown, "busy", busy.err());
    flaky.fail_next(Operation::Claim, InjectedFault::Permanent, 1);
    show_error(&mut shown, "unavailable", soon("unavailable", locks.lock("m").acquire()).await.err());
    flaky.fail_next(Operation::Claim, InjectedFault::Panic, 1);
    show_error(&mut shown, "a panic", soon("a panic", locks.lock("m").acquire()).await.err());
    let ttl = locks.lock("n").ttl(Duration::MAX);
    show_error(&mut shown, "a bad TTL", soon("a bad TTL", ttl.acquire()).await.err());
    gate.freeze();
    clock.advance(trial.long());
    show_error(&mut shown, "lost", guard.ensure_held().err());
    show(&mut shown, "the lost guard", &guard);
    show_error(&mut shown, "the release of a lost lock", soon("release", guard.release()).await.err());
    gate.thaw();
    show(&mut shown, "the requests", &recording.calls());

    let forms = forms(&trial, &recording.ids());
    assert!(forms.len() > 10, "too few encodings of secrets to search for");
    for (what, text) in &shown {
        scan(&forms, what, text);
    }
    Ok(())
}

pub(super) async fn do_not_appear_in_traces(trial: Trial) -> Outcome {
    let Some(capture) = TraceCapture::start() else {
        return Err(Unsupported("the test program has its own global tracing subscriber".to_owned()));
    };
    let clock = ManualClock::new();
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let (store, recording) = watched(store, Recording::new);
    let locks = trial.open_by(store, &clock);
    flaky.fail_next(Operation::Claim, InjectedFault::ReplyLost, 1);
    flaky.fail_next(Operation::Release, InjectedFault::RequestLost, 1);
    // The engine's backoff uses the clock that this case advances.
    let advancing = tokio::spawn({
        let clock = clock.clone();
        async move {
            loop {
                clock.advance(Duration::from_millis(10));
                pass(Duration::from_millis(1)).await;
            }
        }
    });
    let guard = acquired(locks.lock("traced").reentrant(&OwnerId::unique()).label("label")).await;
    assert!(tried(locks.lock("traced")).await.is_none());
    let waits = locks.lock("traced").wait(Duration::from_millis(200));
    let refused = soon("a wait that times out", waits.acquire()).await;
    // By the clock of this case, the first reply comes after the timeout on a busy machine.
    assert!(refused.is_err_and(|error| error.is_not_acquired() || error.is_temporary()));
    let waiting = tokio::spawn(acquired(locks.lock("traced")));
    soon("the waiter is queued", recording.queued(&lock_name("traced"), 2)).await;
    released(guard).await;
    released(join(waiting).await).await;
    let guard = acquired(locks.lock("traced")).await;
    flaky.fail_next(Operation::Renew, InjectedFault::Permanent, 100_000);
    clock.advance(trial.long());
    soon("the loss", guard.lost()).await;
    drop(guard);
    trial.assert_empty(&["traced"], "at the end").await;
    // The task that renews reports the loss, on its own thread.
    until("the trace contains the loss", || capture.captured().contains("message=lost")).await;
    advancing.abort();
    let text = capture.captured();
    for word in ["traced", "acquired"] {
        assert!(text.contains(word), "expected {word:?} in the trace: {text}");
    }
    scan(&forms(&trial, &recording.ids()), "the trace", &text);
    Ok(())
}
