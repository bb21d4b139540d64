//! The protocol between the driver and a server: commands, replies and push messages in RESP3.

use std::io::Write as _;

/// A command: its name and its arguments.
pub type Command = Vec<Vec<u8>>;

/// A reply, or a push message.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// No value.
    Nil,
    /// An integer.
    Int(i64),
    /// A short text such as OK.
    Status(&'static str),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several values.
    Array(Vec<Self>),
    /// Keys and their values, in turn.
    Map(Vec<Self>),
    /// A push message.
    Push(Vec<Self>),
    /// An error: its code and a text.
    Error(String),
}

impl Reply {
    /// Creates a text.
    pub fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    /// Appends the encoded reply to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.extend(b"_\r\n"),
            Self::Int(number) => line(out, ':', number),
            Self::Status(text) => line(out, '+', text),
            Self::Error(text) => line(out, '-', text),
            Self::Bulk(bytes) => {
                line(out, '$', bytes.len());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            Self::Array(values) => all(out, '*', values.len(), values),
            Self::Push(values) => all(out, '>', values.len(), values),
            Self::Map(values) => all(out, '%', values.len() / 2, values),
        }
    }
}

fn line(out: &mut Vec<u8>, kind: char, content: impl std::fmt::Display) {
    write!(out, "{kind}{content}\r\n").ok();
}

fn all(out: &mut Vec<u8>, kind: char, count: usize, values: &[Reply]) {
    line(out, kind, count);
    values.iter().for_each(|value| value.encode(out));
}

/// Removes the first command from `input`; `None` if it is not complete yet.
pub fn take_command(input: &mut Vec<u8>) -> Option<Command> {
    let (mut command, mut at) = (Vec::new(), 0);
    for _ in 0..number(input, b'*', &mut at)? {
        let length = number(input, b'$', &mut at)?;
        command.push(input.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= input.len()).then(|| {
        input.drain(..at);
        command
    })
}

/// Reads a line of this kind with a number at `at`, and moves `at` behind it.
///
/// # Panics
/// If it is a line of another kind.
fn number(input: &[u8], kind: u8, at: &mut usize) -> Option<usize> {
    let rest = &input[(*at).min(input.len())..];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    assert_eq!(rest[0], kind, "the driver sends arrays of texts");
    *at += end + 1;
    std::str::from_utf8(&rest[1..end]).ok()?.trim_end().parse().ok()
}
