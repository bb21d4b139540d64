//! Names are bytes: invalid names cause the same error in every store, and similar names are different locks.

use polylock_core::{Error, InvalidName, LockName};

use crate::trial::{Outcome, Trial, acquired, lock_name, released, soon, tried};

pub(super) async fn invalid_names_are_refused_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let invalid = [
        (String::new(), InvalidName::Empty),
        ("x".repeat(256), InvalidName::TooLong { bytes: 256 }),
        ("é".repeat(128), InvalidName::TooLong { bytes: 256 }),
        ("x".repeat(100_000), InvalidName::TooLong { bytes: 100_000 }),
        ("\0".to_owned(), InvalidName::Nul { at: 0 }),
        ("a\0b".to_owned(), InvalidName::Nul { at: 1 }),
    ];
    for (name, reason) in invalid {
        let refusals = [
            soon("acquire", locks.lock(&name).acquire()).await.map(drop),
            soon("try", locks.lock(&name).try_acquire()).await.map(drop),
            soon("inspect", locks.inspect(&name)).await.map(drop),
            soon("break", locks.break_lock(&name)).await.map(drop),
        ];
        for refusal in refusals {
            match refusal {
                Err(Error::InvalidName(reported)) => assert_eq!(reported, reason),
                other => panic!("expected InvalidName for {reason:?}, got {other:?}"),
            }
        }
    }
    assert!(recording.calls().is_empty(), "requests were sent before the error");
    Ok(())
}

/// Valid, pairwise different names that are equal under a comparison other than by bytes.
fn similar_names() -> Vec<String> {
    let names = [
        "job",
        "Job",
        "JOB",
        "job ",
        " job",
        "job\t",
        "job\n",
        "job\r\n",
        " ",
        "  ",
        ".",
        "..",
        "/",
        "//",
        "a/b",
        "a",
        "b",
        "/a/b",
        "a/b/",
        "a//b",
        "a\\b",
        "\\",
        "%",
        "%%",
        "_",
        "a_b",
        "a%b",
        "a%2Fb",
        "%00",
        "'",
        "\"",
        "''",
        "`",
        "; DROP TABLE locks",
        "'; DROP TABLE locks; --",
        "$1",
        "?",
        ":name",
        "{tag}*?",
        "{tag}",
        "tag",
        "*",
        "[a]",
        "{}",
        "~",
        "#",
        "\u{e9}",
        "e\u{301}",
        "E\u{301}",
        "\u{df}",
        "ss",
        "\u{130}",
        "i",
        "I",
        "\u{131}",
        "\u{212a}",
        "K",
        "k",
        "🔒",
        "👩‍👩‍👧",
        "שלום",
        "\u{202e}job",
        "job\u{200b}",
        "\u{feff}job",
        "\u{7f}",
        "\u{1}",
        "\u{1b}[31m",
        "zookeeper",
        "null",
        "NULL",
        "0",
        "00",
        "0x0",
        "1e3",
        "1000",
        "true",
        "\u{10ffff}",
        "\u{fffd}",
    ];
    let mut names: Vec<String> = names.map(str::to_owned).to_vec();
    names.extend(["x".repeat(254), "x".repeat(255), format!("{} ", "x".repeat(254)), "🔒".repeat(63)]);
    names
}

pub(super) async fn similar_names_are_different_locks(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let names = similar_names();
    let mut guards = Vec::new();
    for name in &names {
        let guard = tried(here.lock(name)).await;
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is treated as a name that is held")));
    }
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(guard.name().as_str(), name);
        assert!(tried(there.lock(name)).await.is_none(), "{name:?} is held and was granted again");
    }
    for guard in guards {
        released(guard).await;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    trial.assert_empty(&names, "after the similar names").await;
    Ok(())
}

pub(super) async fn inspection_returns_names_byte_for_byte(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let names = similar_names();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(acquired(locks.lock(name)).await);
        let status = trial.status(name).await;
        assert_eq!((status.name.as_str(), status.holders.len()), (&**name, 1));
    }
    let listed = soon("list", locks.list("")).await.expect("a list");
    let listed: Vec<&str> = listed.iter().map(|status| status.name.as_str()).collect();
    let mut sorted: Vec<&str> = names.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    assert_eq!(listed, sorted, "expected every name, sorted by its bytes");
    for (name, guard) in names.iter().zip(guards) {
        let broken = soon("break", locks.break_lock(name)).await.expect("a break works");
        assert_eq!(broken.len(), 1, "{name:?}");
        drop(guard);
    }
    Ok(())
}

pub(super) async fn a_prefix_is_not_a_pattern(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let mut names: Vec<LockName> = similar_names().iter().map(|name| lock_name(name)).collect();
    names.sort();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(acquired(locks.lock(name)).await);
    }
    let mut prefixes: Vec<String> = similar_names();
    prefixes.extend(["", "j", "jo", "a%", "a_", "{t", "%2", "x", "nobody"].map(str::to_owned));
    for prefix in prefixes {
        let (inspect, wanted) = (trial.inspect(), prefix.clone());
        let listed = trial.on_io(async move { inspect.list(&wanted).await }).await;
        let listed: Vec<LockName> = listed.into_iter().map(|status| status.name).collect();
        let expected: Vec<LockName> =
            names.iter().filter(|n| n.as_str().starts_with(&prefix)).cloned().collect();
        assert_eq!(listed, expected, "expected the names that begin with {prefix:?}");
    }
    for guard in guards {
        released(guard).await;
    }
    Ok(())
}
