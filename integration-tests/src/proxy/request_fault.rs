//! Faults of single requests.

use std::time::Duration;

/// The fault of a request that a test has [selected](super::Proxy::fault_next).
///
/// With several requests in flight on one connection, "the reply" is the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestFault {
    /// The server receives the request; the connection is reset before the reply.
    ResetBeforeReply,
    /// The server receives the request; the reply and all further bytes to the client are dropped.
    DropReply,
    /// The client's side of the connection is closed, and the server receives the request according to the [flow](super::Flow): with
    /// [`Hold`](super::Flow::Hold), after the client has gone.
    CloseClient,
    /// The server does not receive the request, and the connection is reset.
    Reset,
    /// The request and all further bytes to the server are dropped; the client is not notified.
    Drop,
    /// The server receives the request, and the following ones of the connection, after this delay.
    Delay(Duration),
    /// The server receives the request; the client receives these bytes first, then the reply. They are between two replies, unless
    /// another one is incomplete.
    PushBeforeReply(Vec<u8>),
    /// The server does not receive the request: the proxy sends this reply, and the connection stays open.
    Reply(Vec<u8>),
}

/// A fault, and the requests to which it applies.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) parts: Vec<Vec<u8>>,
    pub(super) fault: RequestFault,
    /// Only the first such request is affected.
    pub(super) once: bool,
}

impl Choice {
    pub(super) fn fault_of(&self, request: &[u8]) -> Option<&RequestFault> {
        self.parts.iter().all(|part| has(request, part)).then_some(&self.fault)
    }
}

pub(super) fn has(request: &[u8], part: &[u8]) -> bool {
    part.is_empty() || request.windows(part.len()).any(|window| window == part)
}
