//! The operations of the driver, by the driver or by a simulated session. Each request is sent before its function returns.

use std::{fmt, io, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, FutureExt};
use tokio::{net::TcpStream, sync::watch};
use zookeeper_client::{
    Acls, CheckWriteError, Connector, Error, MultiReadResult, MultiWriteError, MultiWriteResult, SessionId,
    SessionState, Stat, WatchedEvent,
};

use super::{Change, Reply, Request, Session, Watch};
use crate::config::Config;

type Outcome<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// The same as the driver's.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    Driver(zookeeper_client::Client),
    Simulated(Arc<dyn Session>),
}

/// Opens a session on one of `servers`, or on the simulated ensemble.
pub(crate) async fn connect(config: &Config, connector: Connector, servers: &str) -> Result<Client, Error> {
    match &config.ensemble {
        Some(ensemble) => {
            ensemble.connect(config.session_timeout, config.longest_silence()).await.map(Client::Simulated)
        }
        None => connector.connect(servers).await.map(Client::Driver),
    }
}

/// Opens a connection to `server` without a session. A simulated process can't.
pub(crate) async fn open_stream(server: &str) -> io::Result<TcpStream> {
    match polylock_core::simulation::connect(server) {
        Some(stream) => stream.await.and(Err(io::ErrorKind::Unsupported.into())),
        None => TcpStream::connect(server).await,
    }
}

fn unexpected(reply: &Reply) -> Error {
    Error::UnexpectedError(format!("{reply:?}"))
}

/// Sends `request`, and returns the part of the reply that `take` finds.
fn send<T: Send + 'static>(
    session: &Arc<dyn Session>,
    request: Request,
    take: fn(Reply) -> Result<T, Reply>,
) -> Outcome<'static, T> {
    session.send(request).map(move |reply| take(reply?).map_err(|reply| unexpected(&reply))).boxed()
}

impl Client {
    pub(crate) fn session_id(&self) -> SessionId {
        match self {
            Self::Driver(client) => client.session_id(),
            Self::Simulated(session) => SessionId(session.id()),
        }
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        match self {
            Self::Driver(client) => client.session_timeout(),
            Self::Simulated(session) => session.timeout(),
        }
    }

    pub(crate) fn state(&self) -> SessionState {
        match self {
            Self::Driver(client) => client.state(),
            Self::Simulated(session) => *session.states().borrow(),
        }
    }

    pub(crate) fn state_watcher(&self) -> StateWatcher {
        match self {
            Self::Driver(client) => StateWatcher::Driver(client.state_watcher()),
            Self::Simulated(session) => StateWatcher::Simulated(session.states()),
        }
    }

    pub(crate) fn create<'a>(
        &'a self,
        path: &'a str,
        data: &[u8],
        options: &CreateOptions,
    ) -> Outcome<'a, (Stat, Sequence)> {
        match self {
            Self::Driver(client) => client
                .create(path, data, &options.of_driver())
                .map(|created| created.map(|(stat, sequence)| (stat, Sequence(sequence.into_i64()))))
                .boxed(),
            Self::Simulated(session) => send(session, Request::Change(options.create(path, data)), |reply| {
                if let Reply::Created(stat, sequence) = reply {
                    Ok((stat, Sequence(sequence)))
                } else {
                    Err(reply)
                }
            }),
        }
    }

    pub(crate) async fn mkdir(&self, path: &str, options: &CreateOptions) -> Result<(), Error> {
        match self {
            Self::Driver(client) => client.mkdir(path, &options.of_driver()).await,
            Self::Simulated(_) => match self.create(path, &[], options).await {
                Ok(_) | Err(Error::NodeExists) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    pub(crate) fn delete(&self, path: &str, version: Option<i32>) -> Outcome<'_, ()> {
        match self {
            Self::Driver(client) => client.delete(path, version).boxed(),
            Self::Simulated(session) => send(session, Request::Change(Change::Delete(path.to_owned())), done),
        }
    }

    pub(crate) fn check_stat(&self, path: &str) -> Outcome<'_, Option<Stat>> {
        match self {
            Self::Driver(client) => client.check_stat(path).boxed(),
            Self::Simulated(session) => {
                send(session, Request::Check { path: path.to_owned(), watches: false }, |reply| {
                    if let Reply::State(stat, _) = reply { Ok(stat) } else { Err(reply) }
                })
            }
        }
    }

    pub(crate) fn check_and_watch_stat(&self, path: &str) -> Outcome<'_, (Option<Stat>, OneshotWatcher)> {
        match self {
            Self::Driver(client) => client
                .check_and_watch_stat(path)
                .map(|read| read.map(|(stat, watcher)| (stat, OneshotWatcher::Driver(watcher))))
                .boxed(),
            Self::Simulated(session) => {
                send(session, Request::Check { path: path.to_owned(), watches: true }, |reply| match reply {
                    Reply::State(stat, Some(watch)) => Ok((stat, OneshotWatcher::Simulated(watch))),
                    reply => Err(reply),
                })
            }
        }
    }

    pub(crate) fn get_data(&self, path: &str) -> Outcome<'_, (Vec<u8>, Stat)> {
        match self {
            Self::Driver(client) => client.get_data(path).boxed(),
            Self::Simulated(session) => {
                send(session, Request::Read { path: path.to_owned(), watches: false }, |reply| {
                    if let Reply::Data(data, stat, _) = reply { Ok((data, stat)) } else { Err(reply) }
                })
            }
        }
    }

    pub(crate) fn get_and_watch_data(&self, path: &str) -> Outcome<'_, (Vec<u8>, Stat, OneshotWatcher)> {
        match self {
            Self::Driver(client) => client
                .get_and_watch_data(path)
                .map(|read| read.map(|(data, stat, watcher)| (data, stat, OneshotWatcher::Driver(watcher))))
                .boxed(),
            Self::Simulated(session) => {
                send(session, Request::Read { path: path.to_owned(), watches: true }, |reply| match reply {
                    Reply::Data(data, stat, Some(watch)) => {
                        Ok((data, stat, OneshotWatcher::Simulated(watch)))
                    }
                    reply => Err(reply),
                })
            }
        }
    }

    pub(crate) fn list_children(&self, path: &str) -> Outcome<'_, Vec<String>> {
        match self {
            Self::Driver(client) => client.list_children(path).boxed(),
            Self::Simulated(session) => send(session, Request::List(path.to_owned()), |reply| {
                if let Reply::Children(children) = reply { Ok(children) } else { Err(reply) }
            }),
        }
    }

    pub(crate) fn sync(&self, path: &str) -> Outcome<'_, ()> {
        match self {
            Self::Driver(client) => client.sync(path).boxed(),
            Self::Simulated(session) => send(session, Request::Sync, done),
        }
    }

    pub(crate) fn new_multi_reader(&self) -> MultiReader<'_> {
        match self {
            Self::Driver(client) => MultiReader::Driver(client.new_multi_reader()),
            Self::Simulated(session) => MultiReader::Simulated(session, Vec::new()),
        }
    }

    pub(crate) fn new_multi_writer(&self) -> MultiWriter<'_> {
        match self {
            Self::Driver(client) => MultiWriter::Driver(client.new_multi_writer()),
            Self::Simulated(session) => MultiWriter::Simulated(session, Vec::new()),
        }
    }

    pub(crate) fn new_check_writer(
        &self,
        path: &str,
        version: Option<i32>,
    ) -> Result<CheckWriter<'_>, Error> {
        Ok(match self {
            Self::Driver(client) => CheckWriter::Driver(client.new_check_writer(path, version)?),
            Self::Simulated(session) => CheckWriter::Simulated(session, path.to_owned()),
        })
    }
}

fn done(reply: Reply) -> Result<(), Reply> {
    if let Reply::Done = reply { Ok(()) } else { Err(reply) }
}

/// The same as the driver's, without the modes that this store does not use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CreateMode {
    Persistent,
    Container,
    EphemeralSequential,
}

impl CreateMode {
    pub(crate) const fn with_acls(self, acls: Acls<'static>) -> CreateOptions {
        CreateOptions { mode: self, acls }
    }
}

/// The same as the driver's.
#[derive(Debug, Clone)]
pub(crate) struct CreateOptions {
    mode: CreateMode,
    acls: Acls<'static>,
}

impl CreateOptions {
    fn of_driver(&self) -> zookeeper_client::CreateOptions<'static> {
        use zookeeper_client::CreateMode as Mode;
        let mode = match self.mode {
            CreateMode::Persistent => Mode::Persistent,
            CreateMode::Container => Mode::Container,
            CreateMode::EphemeralSequential => Mode::EphemeralSequential,
        };
        mode.with_acls(self.acls)
    }

    fn create(&self, path: &str, data: &[u8]) -> Change {
        let is_ephemeral = matches!(self.mode, CreateMode::EphemeralSequential);
        Change::Create { path: path.to_owned(), data: data.to_vec(), is_ephemeral }
    }
}

/// The sequence of a created node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence(i64);

impl Sequence {
    pub(crate) const fn into_i64(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Sequence {
    /// Writes the sequence as the servers do in names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.0 <= i32::MAX.into() { 10 } else { 19 };
        write!(f, "{:0digits$}", self.0)
    }
}

/// The same as the driver's.
#[derive(Debug)]
pub(crate) enum OneshotWatcher {
    Driver(zookeeper_client::OneshotWatcher),
    Simulated(Watch),
}

impl OneshotWatcher {
    pub(crate) async fn changed(self) -> WatchedEvent {
        match self {
            Self::Driver(watcher) => watcher.changed().await,
            Self::Simulated(watch) => {
                watch.await.unwrap_or_else(|_| WatchedEvent::new_session(SessionState::Closed))
            }
        }
    }
}

/// The same as the driver's.
#[derive(Debug)]
pub(crate) enum StateWatcher {
    Driver(zookeeper_client::StateWatcher),
    Simulated(watch::Receiver<SessionState>),
}

impl StateWatcher {
    pub(crate) async fn changed(&mut self) -> SessionState {
        match self {
            Self::Driver(watcher) => watcher.changed().await,
            Self::Simulated(states) => match states.changed().await {
                Ok(()) => *states.borrow(),
                Err(_) => SessionState::Closed,
            },
        }
    }
}

/// The same as the driver's.
pub(crate) enum MultiReader<'a> {
    Driver(zookeeper_client::MultiReader<'a>),
    Simulated(&'a Arc<dyn Session>, Vec<String>),
}

impl<'a> MultiReader<'a> {
    pub(crate) fn add_get_data(&mut self, path: &str) -> Result<(), Error> {
        match self {
            Self::Driver(reader) => reader.add_get_data(path)?,
            Self::Simulated(_, paths) => paths.push(path.to_owned()),
        }
        Ok(())
    }

    pub(crate) fn commit(&mut self) -> Outcome<'a, Vec<MultiReadResult>> {
        match self {
            Self::Driver(reader) => reader.commit().boxed(),
            Self::Simulated(session, paths) => {
                send(session, Request::ReadAll(std::mem::take(paths)), |reply| {
                    let Reply::All(read) = reply else { return Err(reply) };
                    let result = |read: Result<_, Error>| match read {
                        Ok((data, stat)) => MultiReadResult::Data { data, stat },
                        Err(err) => MultiReadResult::Error { err },
                    };
                    Ok(read.into_iter().map(result).collect())
                })
            }
        }
    }
}

/// The same as the driver's.
pub(crate) enum MultiWriter<'a> {
    Driver(zookeeper_client::MultiWriter<'a>),
    Simulated(&'a Arc<dyn Session>, Vec<Change>),
}

impl<'a> MultiWriter<'a> {
    pub(crate) fn add_create(
        &mut self,
        path: &str,
        data: &[u8],
        options: &CreateOptions,
    ) -> Result<(), Error> {
        match self {
            Self::Driver(writer) => writer.add_create(path, data, &options.of_driver())?,
            Self::Simulated(_, changes) => changes.push(options.create(path, data)),
        }
        Ok(())
    }

    pub(crate) fn add_set_data(
        &mut self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Result<(), Error> {
        match self {
            Self::Driver(writer) => writer.add_set_data(path, data, version)?,
            Self::Simulated(_, changes) => {
                changes.push(Change::Write { path: path.to_owned(), data: data.to_vec(), version });
            }
        }
        Ok(())
    }

    pub(crate) fn add_delete(&mut self, path: &str, version: Option<i32>) -> Result<(), Error> {
        match self {
            Self::Driver(writer) => writer.add_delete(path, version)?,
            Self::Simulated(_, changes) => changes.push(Change::Delete(path.to_owned())),
        }
        Ok(())
    }

    pub(crate) fn commit(&mut self) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>> {
        match self {
            Self::Driver(writer) => writer.commit().boxed(),
            Self::Simulated(session, changes) => {
                commit(session.send(Request::Transaction(std::mem::take(changes)))).boxed()
            }
        }
    }
}

async fn commit(reply: Outcome<'static, Reply>) -> Result<Vec<MultiWriteResult>, MultiWriteError> {
    match reply.await? {
        Reply::Done => Ok(Vec::new()),
        Reply::Refused(index, source) => Err(MultiWriteError::OperationFailed { index, source }),
        reply => Err(unexpected(&reply).into()),
    }
}

/// The same as the driver's, for a transaction that only checks a node.
pub(crate) enum CheckWriter<'a> {
    Driver(zookeeper_client::CheckWriter<'a>),
    Simulated(&'a Arc<dyn Session>, String),
}

impl<'a> CheckWriter<'a> {
    pub(crate) fn commit(self) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, CheckWriteError>> {
        match self {
            Self::Driver(writer) => writer.commit().boxed(),
            Self::Simulated(session, path) => {
                let reply = session.send(Request::Transaction(vec![Change::Exists(path)]));
                commit(reply).map(|committed| committed.map_err(CheckWriteError::from)).boxed()
            }
        }
    }
}
