//! What becomes of single requests.

use std::time::Duration;

/// What becomes of a request that a test has [chosen](super::Proxy::next).
///
/// With several requests under way on one connection, "the reply" is the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The server has it; the reply is dropped, and the connection reset.
    CutReply,
    /// The server has it; the reply is dropped, and all that follows it: the client never hears of anything again.
    SwallowReply,
    /// The server never has it, and the connection is reset.
    Cut,
    /// The server never has it, nor what follows it, and the client never hears of that.
    Swallow,
    /// The server has it this much later, and after it what follows on the connection.
    Late(Duration),
    /// The server never has it: this is the reply, and the connection goes on.
    Answer(Vec<u8>),
}

/// Which requests meet which fate.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) parts: Vec<Vec<u8>>,
    pub(super) fate: Fate,
    /// Only the first of them does.
    pub(super) once: bool,
}

impl Choice {
    pub(super) fn fate_of(&self, request: &[u8]) -> Option<&Fate> {
        self.parts.iter().all(|part| has(request, part)).then_some(&self.fate)
    }
}

fn has(request: &[u8], part: &[u8]) -> bool {
    part.is_empty() || request.windows(part.len()).any(|window| window == part)
}
