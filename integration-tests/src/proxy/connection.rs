//! Forwards the bytes of a connection.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use polylock_core::{Clock, Moment, SystemClock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
};

use super::{
    request_fault::RequestFault,
    requests::Requests,
    state::Shared,
    switches::{Direction, End, Flow, Switches},
};
use crate::clock::now;

/// Creates a socket at `address`, in addition to the one that reserves the port.
pub(super) fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Not `reuseaddr`, with which other programs could bind the port while the proxy does not listen.
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

pub(super) async fn serve(
    address: SocketAddr,
    seen: &mut watch::Receiver<Switches>,
    shared: &Arc<Shared>,
    ready: impl FnOnce(),
) {
    let mut ready = Some(ready);
    let mut listener: Option<TcpListener> = None;
    loop {
        let switches = *seen.borrow_and_update();
        if switches.stopped {
            return;
        }
        if switches.refuses {
            listener = None;
        } else if listener.is_none() {
            let listening = socket(address).and_then(|socket| socket.listen(1024));
            listener = Some(listening.unwrap_or_else(|error| panic!("can't listen at {address}: {error}")));
        }
        shared.is_listening.store(listener.is_some(), SeqCst);
        if let Some(ready) = ready.take() {
            ready();
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = seen.changed() => if changed.is_err() { return },
            accepted = accepted => {
                // A client that has gone already is ignored.
                let Ok((client, _)) = accepted else { continue };
                let number = shared.connections.load(SeqCst) + 1;
                // In this order, so that a counted connection does not appear to have ended.
                shared.open().insert(number);
                shared.connections.store(number, SeqCst);
                let connection = Connection { number, seen: seen.clone(), shared: shared.clone() };
                let server = seen.borrow().server;
                tokio::spawn(connection.forward(client, server));
            }
        }
    }
}

/// A connection of a client, and the corresponding one to the server.
struct Connection {
    /// Starts at 1.
    number: u64,
    seen: watch::Receiver<Switches>,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open().remove(&self.number);
    }
}

/// An element in transit.
enum Item {
    Bytes(Vec<u8>),
    End,
}

/// An instruction of a request's fault to the opposite direction. It is sent before the server receives the request.
enum Instruction {
    Reset,
    Drop,
    Close,
    Send(Vec<u8>),
}

/// The role of a direction.
enum Role {
    Requests { requests: Requests, instructions: mpsc::UnboundedSender<Instruction> },
    Replies(mpsc::UnboundedReceiver<Instruction>),
}

impl Role {
    /// Returns the next instruction; `None` for the direction of the requests.
    async fn next_instruction(&mut self) -> Option<Instruction> {
        match self {
            Self::Requests { .. } => None,
            Self::Replies(instructions) => instructions.recv().await,
        }
    }
}

/// The bytes that were read in one direction and not forwarded yet.
#[derive(Default)]
struct Pipe {
    buffered: VecDeque<(Moment, Item)>,
    /// Bytes were dropped.
    gap: bool,
    /// The next bytes reset the connection.
    resets: bool,
}

impl Pipe {
    fn push(&mut self, item: Item, flow: Flow) {
        self.gap |= flow == Flow::Drop;
        if !self.gap {
            let delay = if let Flow::Delay(time) = flow { time } else { Duration::ZERO };
            self.buffered.push_back((now() + delay, item));
        }
    }
}

impl Connection {
    async fn forward(self, mut client: TcpStream, server: SocketAddr) {
        let end = match TcpStream::connect(server).await {
            Ok(mut server) => {
                client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).ok();
                let end = self.forward_between(&mut client, &mut server).await;
                finish(server, end).await;
                end
            }
            // The client is already connected, so a refusal of the server can only be reported by a reset.
            Err(_) => End::Reset,
        };
        finish(client, end).await;
    }

    async fn forward_between(&self, client: &mut TcpStream, server: &mut TcpStream) -> End {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let (sender, receiver) = mpsc::unbounded_channel();
        let requests = Role::Requests { requests: Requests::new(self.shared.framing), instructions: sender };
        let mut seen = self.seen.clone();
        let cut = async {
            loop {
                let cut = seen.borrow_and_update().cut;
                if let Some((_, end)) = cut.filter(|(range, _)| range.contains(self.number)) {
                    return end;
                }
                if seen.changed().await.is_err() {
                    return End::Reset;
                }
            }
        };
        let pumps = async {
            tokio::try_join!(
                self.pump(Direction::ToServer, from_client, to_server, requests),
                self.pump(Direction::ToClient, from_server, to_client, Role::Replies(receiver)),
            )
        };
        tokio::select! {
            biased;
            end = cut => end,
            pumped = pumps => pumped.err().unwrap_or(End::Close),
        }
    }

    /// Forwards one direction until its sender has ended. The error is the immediate end of the whole connection.
    async fn pump(
        &self,
        way: Direction,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        mut role: Role,
    ) -> Result<(), End> {
        let mut seen = self.seen.clone();
        let mut pipe = Pipe::default();
        let mut buffer = vec![0; 64 * 1024];
        // The sender has ended; the receiver has gone.
        let (mut ended, mut broken) = (false, false);
        loop {
            let flow = seen.borrow_and_update().flow(self.number, way);
            if flow == Flow::Drop && !pipe.buffered.is_empty() {
                pipe.buffered.clear();
                pipe.gap = true;
            }
            let due = pipe.buffered.front().filter(|_| !matches!(flow, Flow::Hold | Flow::Stall));
            let due = due.map(|(due, _)| *due);
            let waits = due.is_some();
            let due = SystemClock.sleep_until(due.unwrap_or(Moment::NEVER));
            tokio::select! {
                biased;
                changed = seen.changed() => if changed.is_err() { return Err(End::Reset) },
                () = due, if waits => {
                    match pipe.buffered.pop_front() {
                        Some((_, Item::Bytes(bytes))) => {
                            self.shared.passed[way as usize].fetch_add(bytes.len() as u64, SeqCst);
                            // The rest is still read to its end, as if the receiver received it.
                            broken = broken || to.write_all(&bytes).await.is_err();
                        }
                        _ => {
                            to.shutdown().await.ok();
                            return Ok(());
                        }
                    }
                }
                // Before the read: the reply follows the instruction.
                Some(instruction) = role.next_instruction() => match instruction {
                    Instruction::Reset => pipe.resets = true,
                    Instruction::Drop => pipe.gap = true,
                    Instruction::Close => {
                        pipe.gap = true;
                        to.shutdown().await.ok();
                    }
                    Instruction::Send(bytes) => pipe.push(Item::Bytes(bytes), seen.borrow().flow(self.number, way)),
                },
                read = from.read(&mut buffer), if !ended && flow != Flow::Stall => {
                    let read = read.unwrap_or(0);
                    ended = read == 0;
                    // The current flow, which may have changed during the read.
                    let flow = seen.borrow().flow(self.number, way);
                    match &mut role {
                        Role::Requests { requests, instructions } => {
                            requests.push(&buffer[..read]);
                            while let Some(request) = requests.next() {
                                self.shared.requests.fetch_add(1, SeqCst);
                                self.shared.record(way, &request, self.number);
                                self.send(request, flow, &mut pipe, instructions)?;
                            }
                            let rest = requests.rest(ended);
                            if !rest.is_empty() {
                                pipe.push(Item::Bytes(rest), flow);
                            }
                        }
                        Role::Replies(_) if !ended => {
                            self.shared.record(way, &buffer[..read], self.number);
                            if pipe.resets && !pipe.gap && flow != Flow::Drop {
                                self.shared.resets_before_reply.fetch_add(1, SeqCst);
                                return Err(End::Reset);
                            }
                            pipe.push(Item::Bytes(buffer[..read].to_vec()), flow);
                        }
                        Role::Replies(_) => (),
                    }
                    if ended {
                        pipe.push(Item::End, flow);
                    }
                }
            }
        }
    }

    /// Forwards a request, or applies its fault.
    fn send(
        &self,
        request: Vec<u8>,
        flow: Flow,
        pipe: &mut Pipe,
        instructions: &mpsc::UnboundedSender<Instruction>,
    ) -> Result<(), End> {
        // A request that is lost anyway has no other fault.
        let lost = pipe.gap || flow == Flow::Drop;
        let fault = if lost { None } else { self.shared.fault(&request) };
        // The receiver is gone when the server has ended: then there is no reply.
        let instruct = |instruction| instructions.send(instruction).unwrap_or_default();
        match fault {
            None => (),
            Some(RequestFault::ResetBeforeReply) => instruct(Instruction::Reset),
            Some(RequestFault::DropReply) => instruct(Instruction::Drop),
            Some(RequestFault::CloseClient) => instruct(Instruction::Close),
            Some(RequestFault::Reset) => return Err(End::Reset),
            Some(RequestFault::Drop) => pipe.gap = true,
            Some(RequestFault::Delay(delay)) => {
                pipe.push(Item::Bytes(request), Flow::Delay(delay));
                return Ok(());
            }
            Some(RequestFault::PushBeforeReply(bytes)) => instruct(Instruction::Send(bytes)),
            Some(RequestFault::Reply(reply)) => {
                instruct(Instruction::Send(reply));
                return Ok(());
            }
        }
        pipe.push(Item::Bytes(request), flow);
        Ok(())
    }
}

async fn finish(mut stream: TcpStream, end: End) {
    match end {
        // A drop with this option sends a reset.
        End::Reset => stream.set_zero_linger().ok(),
        End::Close => stream.shutdown().await.ok(),
    };
}
