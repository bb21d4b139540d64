//! Fuzz targets: the texts of users and of other programs.

use std::time::Duration;

use crate::{
    BreakNotice, Entry, InvalidName, Label, LockName, Mode, Options, OwnerId, duration,
    url::{Address, Certificates, StoreUrl, checks},
    wakeups::{Handover, WaiterId},
};

polylock_fuzz::fuzz_targets!(tests: names, durations, urls, owners, modes, handovers);

fn names(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match LockName::new(&text) {
        Ok(name) => {
            assert!((1..=LockName::MAX_BYTES).contains(&text.len()) && !text.contains('\0'));
            assert!(!name.to_string().contains(char::is_control), "{name}");
            assert_eq!(name.as_str(), text);
            assert_eq!(text.parse(), Ok(name));
            match LockName::nodes_to(&text) {
                Ok(nodes) => {
                    assert_eq!(nodes.len(), 1 + text.matches('/').count());
                    assert!(nodes.last().is_some_and(|node| node.as_str() == text));
                }
                Err(InvalidName::EmptyComponent { at }) => {
                    assert!(text[at..].starts_with('/') || (at == text.len() && text.ends_with('/')), "{at}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        Err(InvalidName::Empty) => assert_eq!(text, ""),
        Err(InvalidName::TooLong { bytes }) => assert!(bytes == text.len() && bytes > LockName::MAX_BYTES),
        Err(InvalidName::Nul { at }) => assert_eq!(text.find('\0'), Some(at)),
        Err(error @ InvalidName::EmptyComponent { .. }) => panic!("{error}"),
    }
}

fn durations(input: &[u8]) {
    let Ok(parsed) = duration::parse(&String::from_utf8_lossy(input)) else { return };
    assert_eq!(duration::parse(&duration::format(parsed)), Ok(parsed));
    let range = Duration::from_millis(5)..=Duration::from_secs(60);
    assert_eq!(duration::check("key", parsed, &range).is_ok(), range.contains(&parsed));
}

fn urls(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let read = |text: &str| {
        let url = StoreUrl::parse(text)?;
        let mut keys = url.keys();
        Options::from_keys(&mut keys)?;
        Certificates::from_keys(&mut keys)?;
        keys.finish()?;
        Ok(url)
    };
    checks::hides_password(read, &text, |password| format!("x://user:{password}@h1:1,[::1]/p"));
    let Ok(url) = StoreUrl::parse(&text) else { return };
    drop(read(&text));
    drop(url.file());
    if let Ok(address) = Address::parse(&url) {
        drop((address.credentials(), address.decoded_path()));
        for server in address.servers().unwrap_or_default() {
            assert!(!server.name.is_empty() && !server.name.contains(','), "{server:?}");
            let port = |text: &str| text.rsplit_once(':')?.1.parse::<u16>().ok();
            assert!(server.with_port(7).is_ok_and(|text| port(&text) > Some(0)) || server.port.is_some());
        }
    }
}

/// Returns true if the text has at most 255 bytes, and no character that ends a line or changes its display.
fn is_printable(text: &str) -> bool {
    text.len() <= OwnerId::MAX_BYTES
        && !text.contains(|c: char| c.is_control() || "\u{2028}\u{202e}".contains(c))
}

fn owners(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (owner, label) = (OwnerId::sanitized(&text), Label::sanitized(&text));
    assert!(is_printable(owner.as_str()) && is_printable(label.as_str()));
    assert_eq!(OwnerId::new(owner.as_str()).is_ok(), !text.is_empty());
    assert_eq!(Label::new(&text).is_ok(), label.as_str() == text);
    assert_eq!(Label::new(label.as_str()), Ok(label));

    let notice = BreakNotice::from_text(&text);
    assert!(!notice.to_string().contains(char::is_control), "{notice}");
    assert_eq!(BreakNotice::from_text(&notice.to_text()), notice);

    let entry = Entry::new(Mode::Shared, owner, &text, None, Duration::MAX, Duration::MAX);
    assert!(is_printable(&entry.label));
}

fn modes(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(mode) = text.parse::<Mode>() {
        let names = [mode.code(), "exclusive", "shared"];
        assert!(names.iter().any(|name| name.eq_ignore_ascii_case(&text)), "{text}");
    }
    if let [bit] = *input {
        assert!(Mode::from_bit(bit).is_none_or(|mode| mode.bit() == bit));
    }
}

fn handovers(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Some(Handover { waiter, position, grant }) = Handover::parse(&text) else { return };
    let WaiterId::Ticket(ticket) = waiter else { panic!("{waiter:?}") };
    let again = format!("{ticket} {position} {} {}", grant.token, grant.lease.as_micros());
    assert_eq!(Handover::parse(&again), Some(Handover { waiter, position, grant }), "{again}");
}
