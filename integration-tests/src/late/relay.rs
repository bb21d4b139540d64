//! The relays between the four processes and the servers: they withhold one message of a schedule, and record all.
//!
//! Each process has a relay in front of each server. A message belongs to the schedule whose lock it names. From the message on that a
//! [`Trap`] withholds, nothing more of its connection reaches the server, whatever becomes of the client, until the coordinator delivers it.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{Moment, SystemClock, sync::lock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::JoinHandle,
};

use super::frames::{Frames, Protocol};
use crate::clock::now;

/// The name of every lock begins with this text, and a number of eight digits follows. It has letters alone, so every protocol writes it as it
/// is, or in hexadecimal digits.
const NAME: &str = "latename";

/// The number of digits in a name.
const DIGITS: usize = 8;

/// The time for which a client waits for a reply.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a server has to carry out a message that is delivered late.
const CARRIED_OUT: Duration = Duration::from_secs(1);

/// Returns the name of the lock with this number.
#[must_use]
pub fn name(number: u32) -> String {
    format!("{NAME}{number:0DIGITS$}")
}

/// Returns the number of the lock that a message names first.
fn named_in(message: &[u8]) -> Option<u32> {
    let hex = |text: &[u8]| text.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let find =
        |part: &[u8]| message.windows(part.len()).position(|window| window == part).map(|at| at + part.len());
    let digits = if let Some(at) = find(NAME.as_bytes()) {
        message.get(at..at + DIGITS)?.to_vec()
    } else {
        // Each digit is a 3 and the digit.
        let at = find(hex(NAME.as_bytes()).as_bytes())?;
        message.get(at..at + 2 * DIGITS)?.iter().skip(1).step_by(2).copied().collect()
    };
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

/// A message of a schedule that has passed or was withheld.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The number of its server.
    pub server: usize,
    /// The message.
    pub bytes: Vec<u8>,
    /// True if it is, or follows, the claim of a request that no other process knows: after its release a copy is not refused if it was
    /// answered.
    pub is_claim: bool,
    /// True if it was withheld.
    pub is_withheld: bool,
    /// True if its client gets the reply, so it knows of no other copy.
    pub is_answered: bool,
}

/// The message to withhold.
#[derive(Debug, Clone, Copy)]
pub struct Trap {
    /// The number of messages to let pass before.
    pub skip: u32,
    /// The servers whose message is withheld, one bit for each.
    pub servers: u8,
    /// True if one message to each of these servers is withheld, and not only to the first.
    pub each: bool,
    /// True if all messages are withheld from this one on, until it is delivered.
    pub all: bool,
    /// True if the connection to the client ends with the message; otherwise the client waits.
    pub closes: bool,
}

/// The messages of one schedule that one process sends.
#[derive(Debug, Default)]
struct Watched {
    recorded: Vec<Recorded>,
    trap: Option<Trap>,
    is_claim: bool,
    /// The servers to which a message was withheld.
    sprung: u8,
    withheld: Vec<Withheld>,
}

/// A message that is withheld.
#[derive(Debug)]
pub struct Withheld {
    /// The time at which it arrived.
    pub at: Moment,
    /// Sends the end of its delivery.
    deliver: oneshot::Sender<oneshot::Sender<()>>,
}

impl Withheld {
    /// Delivers it, and waits until the server has replied, or must have carried it out. Returns the time of the delivery.
    pub async fn deliver(self) -> Moment {
        let (sender, done) = oneshot::channel();
        let at = now();
        if self.deliver.send(sender).is_ok() {
            done.await.ok();
        }
        at
    }
}

/// The relays of one process.
#[derive(Debug)]
pub struct Relays {
    /// The address of the relay in front of each server.
    pub addresses: Vec<SocketAddr>,
    schedules: Arc<Mutex<HashMap<u32, Watched>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Relays {
    /// Starts a relay in front of each of these servers.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(servers: &[(Protocol, SocketAddr)]) -> io::Result<Self> {
        let schedules = Arc::<Mutex<HashMap<u32, Watched>>>::default();
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        for (server, &(protocol, address)) in servers.iter().enumerate() {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?);
            let schedules = schedules.clone();
            tasks.push(tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let link = Link { server, protocol, schedules: schedules.clone() };
                    // The errors are those of connections that have ended.
                    tokio::spawn(async move { link.forward(client, address).await.ok() });
                }
            }));
        }
        Ok(Self { addresses, schedules, tasks })
    }

    /// Begins to record the messages of a schedule.
    pub fn watch(&self, number: u32) {
        lock(&self.schedules).insert(number, Watched::default());
    }

    /// Marks the messages from now on as those of a claim of a request that no other process knows, or of anything else.
    pub fn claims(&self, number: u32, is_claim: bool) {
        if let Some(watched) = lock(&self.schedules).get_mut(&number) {
            watched.is_claim = is_claim;
        }
    }

    /// Withholds the next message of a schedule.
    pub fn set(&self, number: u32, trap: Trap) {
        if let Some(watched) = lock(&self.schedules).get_mut(&number) {
            watched.trap = Some(trap);
        }
    }

    /// Withholds the very next message of a schedule, if none was withheld yet.
    pub fn hurry(&self, number: u32) {
        if let Some(trap) = lock(&self.schedules).get_mut(&number).and_then(|watched| watched.trap.as_mut()) {
            trap.skip = 0;
        }
    }

    /// Returns the messages that were withheld since the last call.
    #[must_use]
    pub fn withheld(&self, number: u32) -> Vec<Withheld> {
        let mut schedules = lock(&self.schedules);
        schedules.get_mut(&number).map(|watched| std::mem::take(&mut watched.withheld)).unwrap_or_default()
    }

    /// Withholds nothing more of a schedule.
    pub fn disarm(&self, number: u32) {
        if let Some(watched) = lock(&self.schedules).get_mut(&number) {
            watched.trap = None;
        }
    }

    /// Returns the messages of a schedule so far.
    #[must_use]
    pub fn recorded(&self, number: u32) -> Vec<Recorded> {
        lock(&self.schedules).get(&number).map(|watched| watched.recorded.clone()).unwrap_or_default()
    }

    /// Ends the records of a schedule.
    pub fn forget(&self, number: u32) {
        lock(&self.schedules).remove(&number);
    }
}

/// A connection through a relay.
struct Link {
    server: usize,
    protocol: Protocol,
    schedules: Arc<Mutex<HashMap<u32, Watched>>>,
}

/// A message to be delivered later.
struct Held {
    delivery: oneshot::Receiver<oneshot::Sender<()>>,
    /// True if its client is to be disconnected.
    closes: bool,
    /// The number of its schedule, and its place in the record.
    place: (u32, usize),
    /// The time at which it arrived.
    at: Moment,
}

impl Link {
    /// Records a message, and returns what is needed if it is to be withheld.
    fn see(&self, message: &[u8]) -> Option<Held> {
        let number = named_in(message)?;
        let mut schedules = lock(&self.schedules);
        let watched = schedules.get_mut(&number)?;
        let bit = 1 << self.server;
        let has_sprung = watched.sprung;
        let trap = watched.trap.as_mut().filter(|trap| {
            let same = if trap.each { bit } else { u8::MAX };
            trap.servers & bit != 0 && (trap.all || has_sprung & same == 0)
        });
        let caught = trap.and_then(|trap| match trap.skip.checked_sub(1) {
            Some(skip) => {
                trap.skip = skip;
                None
            }
            None => Some(trap.closes),
        });
        let (bytes, is_claim) = (message.to_vec(), watched.is_claim);
        watched.recorded.push(Recorded {
            server: self.server,
            bytes,
            is_claim,
            is_withheld: caught.is_some(),
            is_answered: caught.is_none(),
        });
        let closes = caught?;
        let (deliver, delivery) = oneshot::channel();
        let at = now();
        watched.sprung |= bit;
        watched.withheld.push(Withheld { at, deliver });
        Some(Held { delivery, closes, place: (number, watched.recorded.len() - 1), at })
    }

    /// Records that the client of a message that was withheld still waits for the reply.
    fn answer(&self, (number, index): (u32, usize)) {
        if let Some(watched) = lock(&self.schedules).get_mut(&number) {
            watched.recorded[index].is_answered = true;
        }
    }

    async fn forward(self, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, mut to_server) = server.into_split();
        let (replied, mut replies) = watch::channel(0_u64);
        let (close, closed) = oneshot::channel();
        let back = tokio::spawn(back(from_server, to_client, replied, closed));
        let ended = self.pass_on(from_client, &mut to_server, &mut replies, close).await;
        to_server.shutdown().await.ok();
        back.await.ok();
        ended
    }

    /// Forwards what the client sends, until it ends.
    async fn pass_on(
        self,
        from_client: OwnedReadHalf,
        to_server: &mut OwnedWriteHalf,
        replies: &mut watch::Receiver<u64>,
        close: oneshot::Sender<()>,
    ) -> io::Result<()> {
        let mut frames = Frames::new(self.protocol);
        let (mut client, mut close) = (Some(from_client), Some(close));
        let (mut held, mut message, mut buffered) = (None::<Held>, Vec::new(), Vec::new());
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let read = async {
                match &mut client {
                    Some(client) => client.read(&mut buffer).await,
                    None => std::future::pending().await,
                }
            };
            let delivery = async {
                match &mut held {
                    Some(held) => (&mut held.delivery).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                delivery = delivery => {
                    let before = *replies.borrow_and_update();
                    to_server.write_all(&std::mem::take(&mut message)).await?;
                    if let Some(Held { place, at, .. }) = held.take()
                        && client.is_some()
                        && now() < at + TIMEOUT
                    {
                        self.answer(place);
                    }
                    let until = now() + CARRIED_OUT;
                    let replied = async { replies.wait_for(|count| *count > before).await.map(drop) };
                    SystemClock.before(until, replied).await;
                    if let Ok(done) = delivery {
                        // An error means that the coordinator does not wait.
                        oneshot::Sender::<()>::send(done, ()).ok();
                    }
                    // What follows may withdraw it.
                    if client.is_none() {
                        buffered.append(&mut frames.rest());
                    }
                    to_server.write_all(&std::mem::take(&mut buffered)).await?;
                    if client.is_none() {
                        return Ok(());
                    }
                }
                read = read => {
                    let count = read.unwrap_or(0);
                    if count == 0 {
                        client = None;
                        if held.is_none() {
                            return to_server.write_all(&frames.rest()).await;
                        }
                        continue;
                    }
                    frames.push(&buffer[..count]);
                    while let Some(bytes) = frames.next() {
                        if held.is_some() {
                            buffered.extend(bytes);
                            continue;
                        }
                        match self.see(&bytes) {
                            None => to_server.write_all(&bytes).await?,
                            Some(trapped) => {
                                message = bytes;
                                if trapped.closes {
                                    client = None;
                                    close.take().and_then(|close| close.send(()).ok());
                                }
                                held = Some(trapped);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Forwards what the server sends until it ends; to nobody when the client has gone.
async fn back(
    mut from_server: OwnedReadHalf,
    to_client: OwnedWriteHalf,
    replied: watch::Sender<u64>,
    mut closed: oneshot::Receiver<()>,
) {
    let (mut to_client, mut buffer, mut is_closing) = (Some(to_client), vec![0; 16 * 1024], true);
    loop {
        tokio::select! {
            biased;
            close = &mut closed, if is_closing => {
                is_closing = false;
                if close.is_ok() {
                    to_client = None;
                }
            }
            read = from_server.read(&mut buffer) => {
                let count = read.unwrap_or(0);
                if count == 0 {
                    return;
                }
                replied.send_modify(|replies| *replies += 1);
                if let Some(client) = &mut to_client
                    && client.write_all(&buffer[..count]).await.is_err()
                {
                    to_client = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_belongs_to_the_lock_that_it_names() {
        let name = name(42);
        assert_eq!(named_in(format!("x{name}y").as_bytes()), Some(42));
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(named_in(format!("'{hex}00'").as_bytes()), Some(42));
        assert_eq!(named_in(b"latename"), None);
    }
}
