//! The framing of requests.

/// The boundaries of the requests of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Framing {
    /// Each read is one request.
    #[default]
    Reads,
    /// Each request is an HTTP/1.1 head, and a body of its `Content-Length`.
    Http,
}

/// The bytes of a client that are not a complete request yet.
#[derive(Debug)]
pub(super) struct Requests {
    framing: Framing,
    pending: Vec<u8>,
}

impl Requests {
    pub(super) fn new(framing: Framing) -> Self {
        Self { framing, pending: Vec::new() }
    }

    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Removes and returns the next complete request.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let length = match self.framing {
            Framing::Reads => self.pending.len(),
            Framing::Http => length(&self.pending)?,
        };
        (0 < length && length <= self.pending.len()).then(|| self.pending.drain(..length).collect())
    }

    /// Removes and returns the remaining bytes if the client has ended.
    pub(super) fn rest(&mut self, ended: bool) -> Vec<u8> {
        if ended { std::mem::take(&mut self.pending) } else { Vec::new() }
    }
}

/// Returns the length of the request at the start of `bytes`, if its head is complete.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    let head = bytes.windows(END.len()).position(|window| window == END)? + END.len();
    let text = String::from_utf8_lossy(&bytes[..head]);
    let mut headers = text.lines().filter_map(|line| line.split_once(':'));
    let body = headers.find(|(name, _)| name.trim().eq_ignore_ascii_case("content-length"));
    Some(head + body.and_then(|(_, length)| length.trim().parse::<usize>().ok()).unwrap_or(0))
}
