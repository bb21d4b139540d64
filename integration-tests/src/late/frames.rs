//! The messages in the stream of a client, by the protocol of its server.

use crate::proxy::http_length;

/// The protocol between a client and a server, without encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Redis and Valkey.
    Redis,
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// ZooKeeper.
    ZooKeeper,
    /// HTTP/1.1, with the length of each body in its head.
    Http,
    /// HTTP/2: each frame is a message, and that with the body names the lock.
    Http2,
}

/// The bytes of a client that are not a complete message yet.
#[derive(Debug)]
pub(super) struct Frames {
    protocol: Protocol,
    pending: Vec<u8>,
    /// True after the first message, which has another form in PostgreSQL and HTTP/2.
    has_begun: bool,
}

/// The first bytes of a connection with HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The codes of the requests that precede the first message of PostgreSQL.
const BEFORE_BEGIN: [u32; 2] = [80_877_103, 80_877_104];

impl Frames {
    pub(super) const fn new(protocol: Protocol) -> Self {
        Self { protocol, pending: Vec::new(), has_begun: false }
    }

    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Removes and returns the next complete message.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let bytes = &self.pending;
        let is_first = !self.has_begun;
        let length = match self.protocol {
            Protocol::Redis => redis(bytes),
            Protocol::Postgres if is_first => number(bytes, 0),
            Protocol::Postgres => number(bytes, 1).map(|length| length + 1),
            Protocol::MySql => {
                bytes.first_chunk().map(|[a, b, c]| 4 + usize::from_le_bytes([*a, *b, *c, 0, 0, 0, 0, 0]))
            }
            Protocol::ZooKeeper => number(bytes, 0).map(|length| length + 4),
            Protocol::Http => http_length(bytes),
            Protocol::Http2 if is_first => Some(PREFACE.len()),
            Protocol::Http2 => {
                bytes.first_chunk().map(|[a, b, c]| 9 + usize::from_be_bytes([0, 0, 0, 0, 0, *a, *b, *c]))
            }
        }?;
        if length == 0 || length > bytes.len() {
            return None;
        }
        let message: Vec<u8> = self.pending.drain(..length).collect();
        let code = number(&message, 4).and_then(|code| u32::try_from(code).ok());
        let precedes = |code| self.protocol == Protocol::Postgres && BEFORE_BEGIN.contains(&code);
        self.has_begun |= !is_first || !code.is_some_and(precedes);
        Some(message)
    }

    /// Removes and returns the incomplete message at the end.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}

/// Returns the number in the four bytes from `at`, the greatest first.
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_be_bytes(*digits)).ok()
}

/// Returns the length of a command: an array of texts, each with its length.
fn redis(bytes: &[u8]) -> Option<usize> {
    let line = |from: usize| {
        let end = bytes.get(from..)?.windows(2).position(|two| two == b"\r\n")?;
        let digits = std::str::from_utf8(bytes.get(from + 1..from + end)?).ok()?;
        Some((digits.parse::<usize>().ok(), from + end + 2))
    };
    let (count, mut at) = line(0)?;
    if bytes.first() != Some(&b'*') {
        return Some(at);
    }
    for _ in 0..count? {
        let (length, from) = line(at)?;
        at = from + length? + 2;
    }
    Some(at)
}

/// Returns the statement in a message of a database; `None` if the message is no statement.
#[must_use]
pub(super) fn statement(protocol: Protocol, message: &[u8]) -> Option<String> {
    let text = match (protocol, message) {
        (Protocol::Postgres, [b'Q', _, _, _, _, text @ .., 0]) => text,
        (Protocol::MySql, [_, _, _, _, 3, text @ ..]) => text,
        _ => return None,
    };
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends these messages byte by byte, and expects each when it is complete.
    fn assert_framed(protocol: Protocol, messages: &[&[u8]]) {
        let mut frames = Frames::new(protocol);
        for message in messages {
            let (last, before) = message.split_last().unwrap();
            for byte in before {
                frames.push(&[*byte]);
                assert_eq!(frames.next(), None, "{protocol:?}");
            }
            frames.push(&[*last]);
            assert_eq!(frames.next().as_deref(), Some(*message), "{protocol:?}");
        }
        assert_eq!(frames.rest(), b"");
    }

    #[test]
    fn messages_are_found_in_each_protocol() {
        assert_framed(Protocol::Redis, &[b"*2\r\n$4\r\nPING\r\n$3\r\n\r\nx\r\n", b"*1\r\n$4\r\nPING\r\n"]);
        assert_framed(
            Protocol::Postgres,
            &[b"\0\0\0\x08\x04\xd2\x16\x2f", b"\0\0\0\x0a\0\x03\0\0ab", b"Q\0\0\0\x06x\0"],
        );
        assert_framed(Protocol::MySql, &[b"\x02\0\0\0\x03x", b"\x01\0\0\x01\x01"]);
        assert_framed(Protocol::ZooKeeper, &[b"\0\0\0\x02ab"]);
        assert_framed(
            Protocol::Http,
            &[b"GET / HTTP/1.1\r\n\r\n", b"PUT / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab"],
        );
    }

    #[test]
    fn frames_follow_the_preface_of_http_2() {
        assert_framed(Protocol::Http2, &[PREFACE, b"\0\0\x02\0\x01\0\0\0\x01ab", b"\0\0\0\x04\x01\0\0\0\0"]);
    }

    #[test]
    fn statements_are_texts() {
        assert_eq!(statement(Protocol::Postgres, b"Q\0\0\0\x06x\0").as_deref(), Some("x"));
        assert_eq!(statement(Protocol::MySql, b"\x02\0\0\0\x03x").as_deref(), Some("x"));
        assert_eq!(statement(Protocol::MySql, b"\x02\0\0\0\x01x"), None);
    }
}
