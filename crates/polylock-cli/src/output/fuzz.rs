//! Fuzz targets: the lines of the status file, and the output about locks, with the texts of other programs.

use std::time::Duration;

use polylock::{BreakNotice, Entry, FencingToken, LockName, LockStatus, Mode, OwnerId};
use serde_json::Value;

use super::{Event, EventKind, Recipes, lock_object, lock_text};

polylock_fuzz::fuzz_targets!(tests: json);

/// Parses one line of JSON.
fn parse(line: &str) -> Value {
    assert!(!line.contains('\n'), "{line}");
    serde_json::from_str(line).unwrap()
}

fn json(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (owner, notice) = (OwnerId::sanitized(&text), BreakNotice::from_text(&text));
    let event = Event::new(EventKind::Lost, &text, Mode::Exclusive, &owner, &text).broken(&notice);
    let event = parse(&event.to_json());
    assert_eq!((event["name"].as_str(), event["label"].as_str()), (Some(&*text), Some(&*text)));
    assert_eq!(event["by"].as_str(), notice.by.as_ref().map(OwnerId::as_str));

    let Ok(name) = LockName::new(&text) else { return };
    let entry =
        Entry::new(Mode::Shared, owner, &text, FencingToken::new(i64::MAX), Duration::MAX, Duration::MAX);
    let status = LockStatus::new(name.clone(), vec![entry.clone().broken(Some(notice))], vec![entry; 2]);
    let object = parse(&lock_object(&status, Recipes::default(), "memory", &text));
    assert_eq!((object["name"].as_str(), object["store"].as_str()), (Some(name.as_str()), Some(&*text)));
    assert_eq!(object["holders"][0]["fencing_token"], i64::MAX);
    assert_eq!(object["waiters"][1]["position"], 2);
    assert_eq!(lock_text(&status).lines().count(), 4);
}
