//! Where the bytes go.

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

use super::{End, Fate, Flow, Shared, Switches, Way, requests::Requests};
use crate::clock::now;

/// A socket at `address`, beside the one that keeps the port.
pub(super) fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // And not to reuse the address, with which others could bind it as long as nobody listens.
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

pub(super) async fn serve(
    address: SocketAddr,
    server: SocketAddr,
    seen: &mut watch::Receiver<Switches>,
    shared: &Arc<Shared>,
    ready: impl FnOnce(),
) {
    let mut ready = Some(ready);
    let mut listener: Option<TcpListener> = None;
    loop {
        let switches = *seen.borrow_and_update();
        if switches.over {
            return;
        }
        if switches.refuses {
            listener = None;
        } else if listener.is_none() {
            let listening = socket(address).and_then(|socket| socket.listen(1024));
            listener = Some(listening.unwrap_or_else(|error| panic!("can't listen at {address}: {error}")));
        }
        shared.listens.store(listener.is_some(), SeqCst);
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
                // One that is gone already is no concern.
                let Ok((client, _)) = accepted else { continue };
                let number = shared.connections.fetch_add(1, SeqCst) + 1;
                shared.open().insert(number);
                let connection = Connection { number, seen: seen.clone(), shared: shared.clone() };
                tokio::spawn(connection.carry(client, server));
            }
        }
    }
}

/// One client's connection, and the one to the server that belongs to it.
struct Connection {
    /// From 1 on.
    number: u64,
    seen: watch::Receiver<Switches>,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open().remove(&self.number);
    }
}

/// What is on its way.
enum Item {
    Bytes(Vec<u8>),
    End,
}

/// What a request's fate asks of the way back. It is asked before the server hears of the request.
enum Order {
    CutReply,
    SwallowReply,
    Say(Vec<u8>),
}

/// What a direction has to do with the other one.
enum Side {
    Asks { requests: Requests, orders: mpsc::UnboundedSender<Order> },
    Obeys(mpsc::UnboundedReceiver<Order>),
}

impl Side {
    /// Never for the one that asks.
    async fn order(&mut self) -> Option<Order> {
        match self {
            Self::Asks { .. } => None,
            Self::Obeys(orders) => orders.recv().await,
        }
    }
}

/// What has been read in one direction and not been passed on.
#[derive(Default)]
struct Line {
    held: VecDeque<(Moment, Item)>,
    /// Something was swallowed.
    gap: bool,
    /// What comes next ends the connection.
    cuts: bool,
}

impl Line {
    fn takes(&mut self, item: Item, flow: Flow) {
        self.gap |= flow == Flow::Swallow;
        if !self.gap {
            let delay = if let Flow::Delay(time) = flow { time } else { Duration::ZERO };
            self.held.push_back((now() + delay, item));
        }
    }
}

impl Connection {
    async fn carry(self, mut client: TcpStream, server: SocketAddr) {
        let end = match TcpStream::connect(server).await {
            Ok(mut server) => {
                client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).ok();
                let end = self.carry_between(&mut client, &mut server).await;
                finish(server, end).await;
                end
            }
            // What refuses behind the proxy can only be told by a reset.
            Err(_) => End::Reset,
        };
        finish(client, end).await;
    }

    async fn carry_between(&self, client: &mut TcpStream, server: &mut TcpStream) -> End {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let (order, orders) = mpsc::unbounded_channel();
        let asks = Side::Asks { requests: Requests::new(self.shared.framing), orders: order };
        let mut seen = self.seen.clone();
        let cut = async {
            loop {
                let cut = seen.borrow_and_update().cut;
                if let Some((_, how)) = cut.filter(|(last, _)| self.number <= *last) {
                    return how;
                }
                if seen.changed().await.is_err() {
                    return End::Reset;
                }
            }
        };
        let pumps = async {
            tokio::try_join!(
                self.pump(Way::ToServer, from_client, to_server, asks),
                self.pump(Way::ToClient, from_server, to_client, Side::Obeys(orders)),
            )
        };
        tokio::select! {
            biased;
            how = cut => how,
            pumped = pumps => pumped.err().unwrap_or(End::Close),
        }
    }

    /// Carries in one direction until the sender has ended; the error is how the whole connection ends at once.
    async fn pump(
        &self,
        way: Way,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        mut side: Side,
    ) -> Result<(), End> {
        let mut seen = self.seen.clone();
        let mut line = Line::default();
        let mut buffer = vec![0; 64 * 1024];
        // The sender has ended; the receiver has gone.
        let (mut ended, mut broken) = (false, false);
        loop {
            let flow = seen.borrow_and_update().flow(self.number, way);
            if flow == Flow::Swallow && !line.held.is_empty() {
                line.held.clear();
                line.gap = true;
            }
            let due = line.held.front().filter(|_| !matches!(flow, Flow::Hold | Flow::Stall));
            let due = due.map(|(due, _)| *due);
            let waits = due.is_some();
            let due = SystemClock.sleep_until(due.unwrap_or(Moment::NEVER));
            tokio::select! {
                biased;
                changed = seen.changed() => if changed.is_err() { return Err(End::Reset) },
                () = due, if waits => {
                    match line.held.pop_front() {
                        Some((_, Item::Bytes(bytes))) => {
                            self.shared.passed[way as usize].fetch_add(bytes.len() as u64, SeqCst);
                            // The rest is still read to its end, as if the receiver had it.
                            broken = broken || to.write_all(&bytes).await.is_err();
                        }
                        _ => {
                            to.shutdown().await.ok();
                            return Ok(());
                        }
                    }
                }
                // Before what is read: a reply comes after it.
                Some(order) = side.order() => match order {
                    Order::CutReply => line.cuts = true,
                    Order::SwallowReply => line.gap = true,
                    Order::Say(bytes) => line.takes(Item::Bytes(bytes), seen.borrow().flow(self.number, way)),
                },
                read = from.read(&mut buffer), if !ended && flow != Flow::Stall => {
                    let read = read.unwrap_or(0);
                    ended = read == 0;
                    // As it is switched now.
                    let flow = seen.borrow().flow(self.number, way);
                    match &mut side {
                        Side::Asks { requests, orders } => {
                            requests.read(&buffer[..read]);
                            while let Some(request) = requests.next() {
                                self.shared.requests.fetch_add(1, SeqCst);
                                self.sends(request, flow, &mut line, orders)?;
                            }
                            let rest = requests.rest(ended);
                            if !rest.is_empty() {
                                line.takes(Item::Bytes(rest), flow);
                            }
                        }
                        Side::Obeys(_) if !ended => {
                            if line.cuts && !line.gap && flow != Flow::Swallow {
                                self.shared.cut_replies.fetch_add(1, SeqCst);
                                return Err(End::Reset);
                            }
                            line.takes(Item::Bytes(buffer[..read].to_vec()), flow);
                        }
                        Side::Obeys(_) => (),
                    }
                    if ended {
                        line.takes(Item::End, flow);
                    }
                }
            }
        }
    }

    /// Lets a request meet its fate.
    fn sends(
        &self,
        request: Vec<u8>,
        flow: Flow,
        line: &mut Line,
        orders: &mpsc::UnboundedSender<Order>,
    ) -> Result<(), End> {
        // What is lost anyway has no other fate.
        let lost = line.gap || flow == Flow::Swallow;
        let fate = if lost { None } else { self.shared.fate(&request) };
        // Nobody obeys any more when the server has ended: then there is no reply.
        let orders = |order| orders.send(order).unwrap_or_default();
        match fate {
            None => (),
            Some(Fate::CutReply) => orders(Order::CutReply),
            Some(Fate::SwallowReply) => orders(Order::SwallowReply),
            Some(Fate::Cut) => return Err(End::Reset),
            Some(Fate::Swallow) => line.gap = true,
            Some(Fate::Late(delay)) => {
                line.takes(Item::Bytes(request), Flow::Delay(delay));
                return Ok(());
            }
            Some(Fate::Answer(answer)) => {
                orders(Order::Say(answer));
                return Ok(());
            }
        }
        line.takes(Item::Bytes(request), flow);
        Ok(())
    }
}

async fn finish(mut stream: TcpStream, end: End) {
    match end {
        // Dropping it with this set is a reset.
        End::Reset => stream.set_zero_linger().ok(),
        End::Close => stream.shutdown().await.ok(),
    };
}
