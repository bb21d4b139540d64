//! A service's end of a connection.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use polylock_core::sync::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::simulation::{
    network::Way,
    socket::{Connection, Segment},
    timeline::Timeline,
};

/// What has arrived on a connection, and was not read yet.
#[derive(Debug, Default)]
pub struct Inbox(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    received: VecDeque<u8>,
    has_ended: bool,
    reader: Option<Waker>,
}

impl Inbox {
    /// Adds bytes that have arrived.
    pub fn push(&self, bytes: &[u8]) {
        self.change(|state| state.received.extend(bytes));
    }

    /// Ends the connection after the bytes that have arrived.
    pub fn end(&self) {
        self.change(|state| state.has_ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.0);
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The end that the service reads and writes.
#[derive(Debug)]
pub struct End {
    connection: Arc<Connection>,
    inbox: Arc<Inbox>,
    server: usize,
    timeline: Arc<Timeline>,
}

impl End {
    /// Returns the end of `connection` at `server`, and what arrives there.
    pub fn open(connection: Arc<Connection>, server: usize, timeline: Arc<Timeline>) -> (Self, Arc<Inbox>) {
        let inbox = Arc::<Inbox>::default();
        (Self { connection, inbox: inbox.clone(), server, timeline }, inbox)
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = lock(&self.inbox.0);
        if state.received.is_empty() && !state.has_ended {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buffer.remaining().min(state.received.len());
        let bytes: Vec<u8> = state.received.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.timeline.note("service", || {
            let head = String::from_utf8_lossy(bytes);
            let (status, body) = (head.lines().next().unwrap_or(""), head.lines().last().unwrap_or(""));
            format!("n{} replies to p{}: {status} {body}", self.server, self.connection.process.0)
        });
        self.connection.send(Way::Back, Segment::Data(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.connection.send(Way::Back, Segment::Close);
    }
}
