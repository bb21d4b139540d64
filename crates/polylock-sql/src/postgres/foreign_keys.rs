//! Keys of libpq, and of programs that read the same URLs, which the driver does not know.

use crate::engine::config::{ForeignKey, harmless, only, refused};

const TIMEOUT: &str = "polylock.timeout limits every operation";
const POOL: &str = "it belongs to another pool: write polylock.connections";
const TLS: &str = "the driver can't do that: use sslmode, sslrootcert, sslcert and sslkey";

pub(super) const FOREIGN: &[ForeignKey] = &[
    // An operation has its own limit, and TCP's settings are the system's.
    harmless("keepalives"),
    harmless("keepalives_idle"),
    harmless("keepalives_interval"),
    harmless("keepalives_count"),
    harmless("tcp_user_timeout"),
    harmless("fallback_application_name"),
    // Nothing is prepared.
    harmless("statement-cache-capacity"),
    harmless("statement_cache_size"),
    harmless("prepared_statements"),
    harmless("pgbouncer"),
    only("client_encoding", &["utf8", "utf-8", "auto"], "names of locks are UTF-8: leave it out"),
    // The primary is needed in any case, and a replica is refused.
    only(
        "target_session_attrs",
        &["any", "read-write", "primary"],
        "locks need the primary: leave it out, or write read-write",
    ),
    only("load_balance_hosts", &["disable"], "locks need the primary: leave it out"),
    only(
        "channel_binding",
        &["prefer", "disable"],
        "the driver can't bind the channel: leave it out, and write sslmode=verify-full, which checks the server, too",
    ),
    only("gssencmode", &["disable", "prefer"], "the driver has no GSSAPI: use sslmode"),
    only("sslcompression", &["0"], TLS),
    only("sslsni", &["1"], TLS),
    refused("ssl", "write sslmode=require, or sslmode=verify-full"),
    refused("requiressl", "write sslmode=require, or sslmode=verify-full"),
    refused("sslnegotiation", TLS),
    refused("sslpassword", TLS),
    refused("sslcrl", TLS),
    refused("sslcrldir", TLS),
    refused("ssl_min_protocol_version", TLS),
    refused("ssl_max_protocol_version", TLS),
    refused("require_auth", "the driver can't restrict it: use sslmode=verify-full"),
    refused("krbsrvname", "the driver has no Kerberos"),
    refused("passfile", "set the variable PGPASSFILE"),
    refused("service", "the driver reads no service file: write host, port, user and database into the URL"),
    refused(
        "servicefile",
        "the driver reads no service file: write host, port, user and database into the URL",
    ),
    refused("replication", "locks need an ordinary connection: leave it out"),
    refused("schema", "write polylock.schema for the schema of the locks' tables"),
    refused("search_path", "write polylock.schema for the schema of the locks' tables"),
    refused("connection_limit", POOL),
    refused("pool_size", POOL),
    refused("pool_max_conns", POOL),
    refused("max_connections", POOL),
    refused("pool_timeout", TIMEOUT),
    refused("socket_timeout", TIMEOUT),
    refused("statement_timeout", TIMEOUT),
    refused("connectTimeout", TIMEOUT),
];
