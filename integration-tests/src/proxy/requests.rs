//! Where a request begins and ends.

/// How a client's requests are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Framing {
    /// What is read at once is one.
    #[default]
    Reads,
    /// Each is the head of one of HTTP/1.1 and as much of a body as that says.
    Http,
}

/// What has come from a client and is not whole yet.
#[derive(Debug)]
pub(super) struct Requests {
    framing: Framing,
    pending: Vec<u8>,
}

impl Requests {
    pub(super) fn new(framing: Framing) -> Self {
        Self { framing, pending: Vec::new() }
    }

    /// Adds what was read.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next one that is whole.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let length = match self.framing {
            Framing::Reads => self.pending.len(),
            Framing::Http => length(&self.pending)?,
        };
        (0 < length && length <= self.pending.len()).then(|| self.pending.drain(..length).collect())
    }

    /// What is left if nothing comes any more.
    pub(super) fn rest(&mut self, ended: bool) -> Vec<u8> {
        if ended { std::mem::take(&mut self.pending) } else { Vec::new() }
    }
}

/// The length of the request that `bytes` begin with, if its head is whole.
fn length(bytes: &[u8]) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    let head = bytes.windows(END.len()).position(|window| window == END)? + END.len();
    let text = String::from_utf8_lossy(&bytes[..head]);
    let mut headers = text.lines().filter_map(|line| line.split_once(':'));
    let body = headers.find(|(name, _)| name.trim().eq_ignore_ascii_case("content-length"));
    Some(head + body.and_then(|(_, length)| length.trim().parse::<usize>().ok()).unwrap_or(0))
}
