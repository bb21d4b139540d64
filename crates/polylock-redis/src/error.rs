//! Classifies the driver's errors, and adds advice.

use std::time::Duration;

use polylock_core::{ConfigError, Error, Fault, FencingToken, Operation, failure::At};
use redis::{ErrorKind, RedisError, ServerErrorKind as Server};

use crate::hosts::Deployment;

/// The error code of a script that can't draw a greater number.
const LAST_NUMBER: &str = "POLYLOCKLAST";

const NO_GREATER_NUMBER: &str = "the last number that was accepted is damaged or leaves no room for a greater one, so fencing tokens can't grow. Its key ({polylock}:last \
     on one server, {polylock}:n:NAME with redlock://, in the prefix that is used) must contain the greatest token that was ever \
     granted, in decimal digits: if a wrong clock or a person has changed it, set it to that number";

const NEEDED_RIGHTS: &str = "this user may not use a command, key or channel: it needs ~{polylock}:* &polylock:polylock:* &polylock:broken:polylock \
     (with the prefix that is used) and +evalsha +script|load +subscribe +publish +time +info +get +set +del +exists +hget \
     +hset +hdel +hgetall +hmget +zadd +zrem +zrange +zrank +zscore +zremrangebyscore +pttl +pexpire, and +scan to list locks; in a \
     cluster ~{polylock:* &{polylock:* &polylock:broken:polylock, and also +ssubscribe +spublish +cluster|slots +asking";

/// The advice for a standalone server where a node of a cluster was expected.
pub(crate) const NO_CLUSTER: &str =
    "this server is not part of a Redis Cluster (cluster-enabled is no): write redis:// (or rediss://)";

/// The advice for a server that is starting.
pub(crate) const READS_ITS_DATA: &str = "the server is still reading its data from the disk";

const SLOT_MOVES: &str =
    "the slot of this lock is being moved to another node: claims and releases work again after the move";

/// Returns the error of `operation` if there is no number greater than the last one.
pub(crate) fn no_greater_number(backend: &'static str, operation: Operation, address: &str) -> Error {
    Cause::Unusable(Fault::Permanent, NO_GREATER_NUMBER.to_owned()).at(backend, operation, address)
}

/// The greatest token to which others can be raised: the scripts count in 64-bit floats, exactly up to 2^53.
const GREATEST: i64 = 9_007_199_254_740_980;

/// Returns the number of `token` if the scripts can continue after it.
pub(crate) fn exact(token: FencingToken) -> Option<i64> {
    Some(token.as_i64()).filter(|number| *number <= GREATEST)
}

/// Returns the cause of a failed attempt to continue after `token`.
pub(crate) fn no_room_above(token: FencingToken) -> Cause {
    let advice = format!(
        "the tokens of a Redis store can't continue after {token}: they end at 2^53. Keep the other store, or move to \
         one with greater tokens"
    );
    Cause::Unusable(Fault::Permanent, advice)
}

/// The cause of a failed operation or connection. All callers that waited for the same connection receive a copy.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    /// An error of the driver or the server.
    Driver(RedisError),
    /// The server can't be used in its present state. The text is the advice.
    Unusable(Fault, String),
    /// The server did not reply within this time.
    TimedOut(Duration),
    /// The connection has ended, and is not reset.
    Ended,
    /// A slot that this client was subscribed to has left the server; the replies on that connection are lost.
    SlotLeft,
    /// No usable connection could be made, encrypted or not.
    Connecting(Box<Self>, Encryption),
}

/// The encryption of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    Tls,
    Plain,
}

impl Cause {
    /// Converts the cause of a connection that could not be made. A server that expects the other kind of connection does not report that.
    pub(crate) fn of_connecting(self, encrypted: bool) -> Self {
        Self::Connecting(Box::new(self), if encrypted { Encryption::Tls } else { Encryption::Plain })
    }

    /// Adds advice if a Sentinel refuses the user: a Sentinel may have users of its own.
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

    /// Converts the cause into an error of `operation` at the server `address`.
    pub(crate) fn at(self, backend: &'static str, operation: Operation, address: &str) -> Error {
        let at = At { backend, operation, endpoint: address };
        if let Self::Driver(error) = &self
            && let Some(advice) = disabled_command(error)
        {
            // Not with the text of the server, which repeats the arguments: lines of a script.
            return at.advise(Fault::Permanent, advice);
        }
        match self {
            Self::Driver(error) => {
                let (fault, rejected) = (fault(&error), rejects_credentials(&error));
                at.failed(fault, advice(&error).map(str::to_owned), error).rejecting_credentials(rejected)
            }
            Self::Unusable(fault, advice) => at.advise(fault, advice),
            Self::TimedOut(timeout) => {
                let advice =
                    format!("no reply within {timeout:?}: the server is busy, hangs or can't be reached");
                at.advise(Fault::Temporary, advice)
            }
            Self::Ended => at.advise(Fault::Temporary, "the connection has ended"),
            Self::SlotLeft => at.advise(Fault::Temporary, SLOT_MOVES),
            Self::Connecting(cause, encryption) => match *cause {
                Self::Driver(error) if is_unknown_database(&error) => {
                    let problem = "names a database that the server does not have: see its setting `databases`, 16 by default";
                    ConfigError::new("store", format!("{address}: {problem}")).into()
                }
                Self::Driver(error) if is_disconnected(&error) => {
                    at.failed(fault(&error), Some(encryption.advice(backend)), error)
                }
                Self::TimedOut(timeout) if encryption == Encryption::Tls => {
                    let advice = format!(
                        "no reply within {timeout:?}: the server is busy, hangs or can't be reached, or this port has no TLS: \
                         write {} in that case",
                        Encryption::Plain.url_form(backend)
                    );
                    at.advise(Fault::Temporary, advice)
                }
                cause => cause.at(backend, operation, address),
            },
        }
    }
}

impl Encryption {
    /// Returns the part of a URL of the store `backend` that selects this encryption.
    fn url_form(self, backend: &str) -> &'static str {
        let [tls, plain] = Deployment::of(backend).encryption();
        match self {
            Self::Tls => tls,
            Self::Plain => plain,
        }
    }

    /// Returns the advice if the other side ends a new connection to a server of the store `backend`.
    fn advice(self, backend: &str) -> String {
        const ENDED: &str =
            "the connection was ended before it could be used: check host and port, and whether this port";
        match self {
            Self::Tls => format!("{ENDED} has TLS (write {} if not)", Self::Plain.url_form(backend)),
            Self::Plain => format!(
                "{ENDED} expects TLS (write {}) or belongs to another kind of server; or the server has no connection left (maxclients)",
                Self::Tls.url_form(backend)
            ),
        }
    }
}

/// Returns true if the number of the database in the URL is beyond the server's last one.
fn is_unknown_database(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("DB index is out of range"))
}

/// Returns true if the other side has ended a connection, or has sent bytes that are not part of its protocol.
fn is_disconnected(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Io
        && !has_untrusted_certificate(error)
        && (error.is_connection_dropped() && !error.is_connection_refusal()
            || error.to_string().contains("InvalidContentType"))
}

/// Returns true if the server has replied: the connection works, and the command has had its full effect or none.
pub(crate) fn is_reply(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse => false,
        // The server is shutting down, or no longer the primary: another connection may reach another server.
        ErrorKind::Server(Server::ReadOnly) => false,
        _ => true,
    }
}

fn fault(error: &RedisError) -> Fault {
    match error.kind() {
        _ if rejects_credentials(error) => Fault::Denied,
        ErrorKind::Server(Server::NoPerm) => Fault::Denied,
        ErrorKind::Io if has_untrusted_certificate(error) => Fault::Permanent,
        ErrorKind::Io | ErrorKind::Parse => Fault::Temporary,
        ErrorKind::Server(
            Server::BusyLoading
            | Server::TryAgain
            | Server::ClusterDown
            | Server::MasterDown
            | Server::ReadOnly,
        ) => Fault::Temporary,
        _ => match error.code() {
            Some("OOM" | "MISCONF" | "BUSY" | "NOREPLICAS") => Fault::Temporary,
            _ if has_too_many_clients(error) => Fault::Temporary,
            _ if is_forbidden(error) => Fault::Denied,
            _ => Fault::Permanent,
        },
    }
}

/// Returns true if the server rejects the user or the password.
fn rejects_credentials(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

fn has_too_many_clients(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("max number of clients"))
}

/// Returns true if the user may not use a command, key or channel, where the error has no code for that: in a script, or where the driver
/// hides it.
fn is_forbidden(error: &RedisError) -> bool {
    let fragments = ["user executing the script can't", "ACL failure in script", "has no permissions to run"];
    let text = error.to_string();
    fragments.iter().any(|fragment| text.contains(fragment))
}

/// Returns the advice if the server does not know a command, because its operator has removed it.
fn disabled_command(error: &RedisError) -> Option<String> {
    // It does not name the command.
    const IN_SCRIPT: &str = "Unknown Redis command called from script";
    let text = error.to_string();
    let command = match text.split_once("unknown command ") {
        // The quotation mark depends on the version of the server.
        Some((_, rest)) => rest.split(['\'', '`']).nth(1)?.to_uppercase(),
        None if text.contains(IN_SCRIPT) => "a command of its scripts".to_owned(),
        None => return None,
    };
    Some(format!(
        "polylock needs {command}, which this server does not allow: remove its rename-command from the server's configuration, or use a \
         server with all commands"
    ))
}

/// Returns true if the server's certificate is not accepted.
fn has_untrusted_certificate(error: &RedisError) -> bool {
    error.to_string().contains("invalid peer certificate")
}

fn advice(error: &RedisError) -> Option<&'static str> {
    Some(match (error.kind(), error.code()) {
        _ if rejects_credentials(error) => {
            "check the user and the password, with characters such as @ : / # ? % percent-encoded in the URL"
        }
        _ if error.kind() == ErrorKind::Server(Server::NoPerm) || is_forbidden(error) => NEEDED_RIGHTS,
        (ErrorKind::RESP3NotSupported, _) => "the server is too old: Redis 6.2 or later is required",
        (ErrorKind::Server(Server::ReadOnly), _) => "the server is a replica now: connect to the primary",
        (ErrorKind::Server(Server::MasterDown), _) => {
            "the server is a replica that has lost its primary: connect to the primary"
        }
        (ErrorKind::Server(Server::BusyLoading), _) => READS_ITS_DATA,
        (ErrorKind::Server(Server::Moved | Server::Ask | Server::CrossSlot), _) => {
            "the server is a node of a Redis Cluster that does not serve these keys: write redis-cluster://"
        }
        (ErrorKind::Server(Server::TryAgain), _) => SLOT_MOVES,
        (ErrorKind::Server(Server::ClusterDown), _) => {
            "a slot of the cluster has no node that serves it, or the node can't reach the majority: see CLUSTER INFO"
        }
        (_, Some(LAST_NUMBER)) => NO_GREATER_NUMBER,
        (_, Some("OOM")) => "the server is out of memory: raise its maxmemory",
        (_, Some("MISCONF")) => "the server can't write to its disk, and rejects writes: see its log",
        (_, Some("BUSY")) => {
            "a script of another client has been running for too long: end it with SCRIPT KILL"
        }
        (_, Some("NOREPLICAS")) => "too few replicas are connected for the server's min-replicas-to-write",
        _ if has_too_many_clients(error) => "the server has no connection left: raise its maxclients",
        _ if error.is_timeout() => "no reply in time: the server is busy, hangs or can't be reached",
        (ErrorKind::Io, _) if has_untrusted_certificate(error) => {
            "the server's certificate is not accepted: check that it is for this host and still valid, and that \
             polylock.tls_ca contains the authority that signed it"
        }
        (ErrorKind::Parse, _) => "the server speaks another protocol: check host and port",
        (ErrorKind::Io, _) => {
            "the server can't be reached: check the host, the port, and that the server is running"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use polylock_core::failure::checks;
    use redis::Value;

    use super::*;

    /// Returns the error of a reply, as the driver reads it.
    fn reply(code: &str) -> RedisError {
        match redis::parse_redis_value(format!("-{code} it is refused\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error.into(),
            other => panic!("{other:?}"),
        }
    }

    /// The text of the server repeats the arguments, which are the lines of a script.
    #[test]
    fn a_command_that_the_server_does_not_allow_is_named() {
        let message = |reply: &str| {
            let Ok(Value::ServerError(error)) = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes())
            else {
                panic!("{reply} is no error");
            };
            Cause::Driver(error.into()).at("redis", Operation::Claim, "h:1").chain()
        };
        for (reply, command) in [
            ("ERR unknown command 'SCRIPT', with args beginning with: 'LOAD' '-- Grants a lock'", "SCRIPT"),
            ("ERR unknown command `evalsha`, with args beginning with: `1` `-- Grants a lock`", "EVALSHA"),
            ("ERR unknown command 'TIME', with args beginning with: ", "TIME"),
            (
                "ERR Unknown Redis command called from script script: 5839, on @user_script:71.",
                "a command of its scripts",
            ),
        ] {
            let message = message(reply);
            let named = format!("polylock needs {command}, which this server does not allow");
            assert!(message.contains(&named) && !message.contains("Grants"), "{message}");
        }
        assert!(!message("ERR it is refused").contains("polylock needs"));
    }

    #[test]
    fn the_page_has_the_fault_of_each_error() {
        for (code, wanted, rejected) in checks::errors(include_str!("single/docs.md")) {
            let error = reply(if code.is_empty() { "ERR" } else { code });
            assert_eq!((fault(&error), rejects_credentials(&error)), (wanted, rejected), "{code}: {error}");
            assert!(code.is_empty() || advice(&error).is_some(), "{code} has no advice");
        }
    }
}
