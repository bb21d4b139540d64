//! The meaning of the driver's errors, and advice against them.

use std::time::Duration;

use polylock_core::{ConfigError, Error, Fault, Operation, failure::At};
use redis::{ErrorKind, RedisError, ServerErrorKind as Server};

/// The error code of a script that cannot draw a greater number.
const LAST_NUMBER: &str = "POLYLOCKLAST";

const NO_GREATER_NUMBER: &str = "the last number that was accepted is damaged or leaves no room for a greater one, so fencing tokens can't grow. Its key (on \
     one server {polylock}:last, with redlock:// {polylock}:n:NAME, in the prefix that is used) must hold the greatest token \
     that was ever granted, in decimal digits: if a wrong clock or a person has changed it, set it to that number";

const NEEDED_RIGHTS: &str = "this user may not use a command, key or channel: it needs ~{polylock}:* &polylock:polylock:* &polylock:broken:polylock \
     (with the prefix that is used) and +evalsha +script|load +subscribe +publish +time +info +get +set +del +exists +hget \
     +hset +hdel +hgetall +zadd +zrem +zrange +zrank +zscore +zremrangebyscore +pttl +pexpire, and +scan to list locks; in a \
     cluster ~{polylock:* &{polylock:* &polylock:broken:polylock, and also +ssubscribe +spublish +cluster|slots +asking";

const SLOT_MOVES: &str =
    "the slot of this lock is being moved to another node: claims and releases work again when that is done";

/// There is no number greater than the last one.
pub(crate) fn no_greater_number(backend: &'static str, operation: Operation, address: &str) -> Error {
    Cause::Unusable(Fault::Permanent, NO_GREATER_NUMBER.to_owned()).at(backend, operation, address)
}

/// The cause of a failed operation or connection. All who waited for the same connection receive a copy.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    /// An error of the driver or the server.
    Driver(RedisError),
    /// The server can't be used as it is; the text says what to do.
    Unusable(Fault, String),
    /// No reply within this time.
    TimedOut(Duration),
    /// A slot that this client was subscribed to has left the server, and the replies on that connection are lost.
    SlotLeft,
    /// No connection that can be used, encrypted or not.
    Connecting(Box<Self>, Encryption),
}

/// Whether a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    Tls,
    Plain,
}

impl Cause {
    /// The same for a connection that could not be made. A server that expects the other kind of connection does not say so.
    pub(crate) fn of_connecting(self, encrypted: bool) -> Self {
        Self::Connecting(Box::new(self), if encrypted { Encryption::Tls } else { Encryption::Plain })
    }

    /// The same for a Sentinel, which may have users of its own.
    pub(crate) fn of_sentinel(self) -> Self {
        match &self {
            Self::Driver(error) if fault(error) == Fault::Denied => {
                let advice = "a Sentinel refuses the user: its name and password are sentinel_username and sentinel_password, those \
                              before the @ are for the primary";
                Self::Unusable(Fault::Denied, format!("{advice} ({error})"))
            }
            _ => self,
        }
    }

    /// As an error of `operation` at the server `address`.
    pub(crate) fn at(self, backend: &'static str, operation: Operation, address: &str) -> Error {
        let at = At { backend, operation, place: address };
        match self {
            Self::Driver(error) => at.failed(fault(&error), advice(&error).map(str::to_owned), error),
            Self::Unusable(fault, advice) => at.ours(fault, advice),
            Self::TimedOut(timeout) => {
                let advice =
                    format!("no answer within {timeout:?}: the server is busy, hangs or can't be reached");
                at.ours(Fault::Temporary, advice)
            }
            Self::SlotLeft => at.ours(Fault::Temporary, SLOT_MOVES),
            Self::Connecting(cause, encryption) => match *cause {
                Self::Driver(error) if is_no_database(&error) => {
                    let problem = "names a database that the server does not have: see its setting `databases`, 16 by default";
                    ConfigError::new("store", format!("{address}: {problem}")).into()
                }
                Self::Driver(error) if is_cut_off(&error) => {
                    at.failed(fault(&error), Some(encryption.advice().to_owned()), error)
                }
                Self::TimedOut(timeout) if encryption == Encryption::Tls => {
                    let advice = format!(
                        "no answer within {timeout:?}: the server is busy, hangs or can't be reached, or this port has no TLS: \
                         write redis:// then (polylock.tls=off with redlock://)"
                    );
                    at.ours(Fault::Temporary, advice)
                }
                cause => cause.at(backend, operation, address),
            },
        }
    }
}

impl Encryption {
    /// What to do when the other side ends a new connection.
    const fn advice(self) -> &'static str {
        match self {
            Self::Tls => {
                "the connection was ended before it could be used: check host and port, and whether this port has TLS \
                 (write redis:// if not, or polylock.tls=off with redlock://)"
            }
            Self::Plain => {
                "the connection was ended before it could be used: check host and port, and whether this port expects TLS \
                 (write rediss://, or polylock.tls=on with redlock://) or is no Redis server's; or the server has no connection \
                 left (maxclients)"
            }
        }
    }
}

/// The database of the URL is beyond the server's last one.
fn is_no_database(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("DB index is out of range"))
}

/// The other side has ended a connection, or has sent something that is not part of it.
fn is_cut_off(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Io
        && !is_distrusted(error)
        && (error.is_connection_dropped() && !error.is_connection_refusal()
            || error.to_string().contains("InvalidContentType"))
}

/// Whether the server has replied: then the connection works, and the command has had its effect or none.
pub(crate) fn is_answer(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse => false,
        // The server is shutting down, or no longer the primary: another connection may reach another one.
        ErrorKind::Server(Server::ReadOnly) => false,
        _ => true,
    }
}

fn fault(error: &RedisError) -> Fault {
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::Server(Server::NoPerm) => Fault::Denied,
        ErrorKind::Io if is_distrusted(error) => Fault::Permanent,
        ErrorKind::Io | ErrorKind::Parse => Fault::Temporary,
        ErrorKind::Server(
            Server::BusyLoading
            | Server::TryAgain
            | Server::ClusterDown
            | Server::MasterDown
            | Server::ReadOnly,
        ) => Fault::Temporary,
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => Fault::Denied,
            Some("OOM" | "BUSY" | "NOREPLICAS") => Fault::Temporary,
            _ if is_full(error) => Fault::Temporary,
            _ if is_forbidden(error) => Fault::Denied,
            _ => Fault::Permanent,
        },
    }
}

fn is_full(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("max number of clients"))
}

/// A command, key or channel, where that has no code of its own: in a script, or where the driver hides it.
fn is_forbidden(error: &RedisError) -> bool {
    let told = ["user executing the script can't", "ACL failure in script", "has no permissions to run"];
    let text = error.to_string();
    told.iter().any(|told| text.contains(told))
}

/// The server's certificate is not accepted.
fn is_distrusted(error: &RedisError) -> bool {
    error.to_string().contains("invalid peer certificate")
}

fn advice(error: &RedisError) -> Option<&'static str> {
    Some(match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => {
            "check the user and the password, with characters such as @ : / # ? % percent-encoded in the URL"
        }
        _ if error.kind() == ErrorKind::Server(Server::NoPerm) || is_forbidden(error) => NEEDED_RIGHTS,
        (ErrorKind::RESP3NotSupported, _) => "the server is too old: Redis 6.2 or later is needed",
        (ErrorKind::Server(Server::ReadOnly), _) => "the server is a replica now: connect to the primary",
        (ErrorKind::Server(Server::BusyLoading), _) => "the server is still reading its data from the disk",
        (ErrorKind::Server(Server::Moved | Server::Ask | Server::CrossSlot), _) => {
            "the server is a node of a Redis Cluster that does not serve these keys: write redis-cluster://"
        }
        (ErrorKind::Server(Server::TryAgain), _) => SLOT_MOVES,
        (ErrorKind::Server(Server::ClusterDown), _) => {
            "a slot of the cluster has no node that serves it, or the node can't reach the majority: see CLUSTER INFO"
        }
        (_, Some(LAST_NUMBER)) => NO_GREATER_NUMBER,
        (_, Some("OOM")) => "the server is out of memory: raise its maxmemory",
        (_, Some("MISCONF")) => "the server can't write to its disk, and refuses to go on without",
        (_, Some("BUSY")) => "somebody's script runs for very long: SCRIPT KILL ends it",
        (_, Some("NOREPLICAS")) => "too few replicas are there for the server's min-replicas-to-write",
        _ if is_full(error) => "the server has no connection left: raise its maxclients",
        _ if error.is_timeout() => "no answer in time: the server is busy, hangs or can't be reached",
        (ErrorKind::Io, _) if is_distrusted(error) => {
            "the server's certificate is not accepted: check that it is for this host and still valid, and that \
             polylock.tls_ca has the authority that signed it"
        }
        (ErrorKind::Parse, _) => "what answers speaks another protocol: check host and port",
        (ErrorKind::Io, _) => "the server can't be reached: check host, port and that it runs",
        _ => return None,
    })
}
