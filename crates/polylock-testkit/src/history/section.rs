//! One critical section, and its text format.

use std::{collections::HashMap, fmt, io, ops::Range, str::FromStr};

use polylock_core::Mode;

/// One hold of one lock. Times are in nanoseconds of one clock.
///
/// The hold lasts from `acquired` to [`end`](Self::end), the latter excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The name of the lock.
    pub lock: String,
    /// The holder: unique among concurrent holders.
    pub client: String,
    /// The mode of the hold.
    pub mode: Mode,
    /// The time of the request.
    pub invoked: u64,
    /// The time at which the request was known to be in the queue, if any: a later request may not be served before it.
    pub queued: Option<u64>,
    /// The time at which the client had the lock.
    pub acquired: u64,
    /// The fencing token, if the store has any.
    pub token: Option<u64>,
    /// The deadline after the last renewal.
    pub deadline: u64,
    /// The time at which the release was called.
    pub released: Option<u64>,
    /// The time at which the loss was signalled.
    pub lost: Option<u64>,
    /// The time at which the guarded work was last polled.
    pub polled: Option<u64>,
    /// True if the hold had not ended when this was written. If no later line follows, the client died during it.
    pub open: bool,
}

impl Section {
    /// Creates a section: `client` requested `lock` at the start of `acquiring` and had it at its end.
    #[must_use]
    pub fn new(
        lock: impl Into<String>,
        client: impl Into<String>,
        mode: Mode,
        acquiring: Range<u64>,
    ) -> Self {
        Self {
            lock: lock.into(),
            client: client.into(),
            mode,
            invoked: acquiring.start,
            queued: None,
            acquired: acquiring.end,
            token: None,
            deadline: u64::MAX,
            released: None,
            lost: None,
            polled: None,
            open: false,
        }
    }

    /// Sets the token.
    #[must_use]
    pub const fn token(mut self, token: u64) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub const fn deadline(mut self, at: u64) -> Self {
        self.deadline = at;
        self
    }

    /// Sets the time of the release.
    #[must_use]
    pub const fn released(mut self, at: u64) -> Self {
        self.released = Some(at);
        self
    }

    /// Returns the end of the hold: its release, its loss, or its deadline, whichever came first.
    #[must_use]
    pub fn end(&self) -> u64 {
        let reported = self.released.unwrap_or(u64::MAX).min(self.lost.unwrap_or(u64::MAX));
        reported.min(self.deadline)
    }
}

/// Writes one line without a line feed: `v1`, then the fields in order; `-` for an unknown field.
impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.open { "open" } else { "over" };
        write!(f, "v1 {state} {} {}", Escaped(&self.lock), Escaped(&self.client))?;
        write!(f, " {} {} {}", self.mode, self.invoked, Known(self.queued))?;
        write!(f, " {} {} {}", self.acquired, Known(self.token), self.deadline)?;
        write!(f, " {} {} {}", Known(self.released), Known(self.lost), Known(self.polled))
    }
}

impl FromStr for Section {
    type Err = BadLine;

    fn from_str(line: &str) -> Result<Self, BadLine> {
        let bad = |what| BadLine { what, line: line.to_owned() };
        let mut fields = line.split(' ');
        let mut next = |what| fields.next().ok_or_else(|| bad(what));
        if next("version")? != "v1" {
            return Err(bad("version"));
        }
        let open = match next("state")? {
            "open" => true,
            "over" => false,
            _ => return Err(bad("state")),
        };
        let number = |what, text: &str| text.parse::<u64>().map_err(|_| bad(what));
        let known = |what, text: &str| if text == "-" { Ok(None) } else { number(what, text).map(Some) };
        let section = Self {
            lock: unescape(next("lock")?).ok_or_else(|| bad("lock"))?,
            client: unescape(next("client")?).ok_or_else(|| bad("client"))?,
            mode: next("mode")?.parse().map_err(|_| bad("mode"))?,
            invoked: number("invoked", next("invoked")?)?,
            queued: known("queued", next("queued")?)?,
            acquired: number("acquired", next("acquired")?)?,
            token: known("token", next("token")?)?,
            deadline: number("deadline", next("deadline")?)?,
            released: known("released", next("released")?)?,
            lost: known("lost", next("lost")?)?,
            polled: known("polled", next("polled")?)?,
            open,
        };
        if fields.next().is_some() { Err(bad("field after the last")) } else { Ok(section) }
    }
}

/// The error of a line that is not a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    what: &'static str,
    line: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a section of a history: invalid {} in {:?}", self.what, self.line)
    }
}

impl std::error::Error for BadLine {}

/// Writes `sections`, one line each.
///
/// # Errors
/// The errors of `to`.
pub fn write(mut to: impl io::Write, sections: &[Section]) -> io::Result<()> {
    sections.iter().try_for_each(|section| writeln!(to, "{section}"))
}

/// Parses the sections in `text`, for instance the concatenated files of all processes.
///
/// If a section was written several times, [`open`](Section::open) at first, its last line counts. A last line without a line feed is
/// skipped: its writer was killed while writing it.
///
/// # Errors
/// [`BadLine`] for the first invalid line.
pub fn read(text: &str) -> Result<Vec<Section>, BadLine> {
    let mut sections: Vec<Section> = Vec::new();
    let mut known: HashMap<(String, String, u64), usize> = HashMap::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let section: Section = line.parse()?;
        let key = (section.lock.clone(), section.client.clone(), section.invoked);
        let at = *known.entry(key).or_insert(sections.len());
        if at == sections.len() { sections.push(section) } else { sections[at] = section }
    }
    Ok(sections)
}

struct Known(Option<u64>);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.0 { write!(f, "{value}") } else { f.write_str("-") }
    }
}

/// Writes printable ASCII except `%` unchanged, and every other byte as `%XX`.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| {
            if byte.is_ascii_graphic() && byte != b'%' {
                write!(f, "{}", char::from(byte))
            } else {
                write!(f, "%{byte:02X}")
            }
        })
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_section() -> impl Strategy<Value = Section> {
        let text = || any::<String>();
        let times = (any::<u64>(), any::<u64>(), any::<u64>());
        let maybe = prop::array::uniform5(any::<Option<u64>>());
        (text(), text(), prop::sample::select(&Mode::ALL[..]), times, maybe, any::<bool>()).prop_map(
            |(lock, client, mode, (invoked, acquired, deadline), maybe, open)| {
                let [queued, token, released, lost, polled] = maybe;
                Section {
                    lock,
                    client,
                    mode,
                    invoked,
                    queued,
                    acquired,
                    token,
                    deadline,
                    released,
                    lost,
                    polled,
                    open,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_line_parses_to_its_section(section in any_section()) {
            let line = section.to_string();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(line.parse(), Ok(section));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(v1 )?(open|over)?[ -~%]{0,60}\n?") {
            drop(read(&text));
        }
    }

    #[test]
    fn the_last_line_of_a_section_counts_and_an_incomplete_one_is_skipped() {
        let mut section = Section::new("a b", "1", Mode::Exclusive, 1..2);
        section.open = true;
        let open = section.to_string();
        section.open = false;
        let over = section.released(9).to_string();
        let other = Section::new("a b", "2", Mode::Exclusive, 1..2).to_string();
        let text = format!("{open}\n{other}\n{over}\nv1 over torn");
        let read = read(&text).unwrap();
        assert_eq!(
            read.iter().map(|s| (s.open, s.released)).collect::<Vec<_>>(),
            [(false, Some(9)), (false, None)]
        );
        assert!(super::read("v1 over torn\n").is_err());
    }
}
