//! URL keys of libpq, and of programs that read the same URLs, that the driver does not know.

use crate::engine::config::{DriverKey, ignored, one_of, rejected};

const TIMEOUT: &str = "polylock.operation_timeout limits every operation";
const POOL: &str = "it configures another pool: write polylock.connections";
const TLS: &str = "the driver does not support it: use sslmode, sslrootcert, sslcert and sslkey";

pub(super) const DRIVER_KEYS: &[DriverKey] = &[
    // Each operation has its own time limit; the operating system has its own TCP settings.
    ignored("keepalives"),
    ignored("keepalives_idle"),
    ignored("keepalives_interval"),
    ignored("keepalives_count"),
    ignored("tcp_user_timeout"),
    ignored("fallback_application_name"),
    // The store uses no prepared statements.
    ignored("statement-cache-capacity"),
    ignored("statement_cache_size"),
    ignored("prepared_statements"),
    ignored("pgbouncer"),
    one_of("client_encoding", &["utf8", "utf-8", "auto"], "names of locks are UTF-8: omit it"),
    // The store always needs the primary, and refuses a replica.
    one_of(
        "target_session_attrs",
        &["any", "read-write", "primary"],
        "locks need the primary: omit it, or write read-write",
    ),
    one_of("load_balance_hosts", &["disable"], "locks need the primary: omit it"),
    one_of(
        "channel_binding",
        &["prefer", "disable"],
        "the driver can't bind the channel: omit it, and write sslmode=verify-full, which also checks the server",
    ),
    one_of("gssencmode", &["disable", "prefer"], "the driver has no GSSAPI: use sslmode"),
    one_of("sslcompression", &["0"], TLS),
    one_of("sslsni", &["1"], TLS),
    rejected("ssl", "write sslmode=require, or sslmode=verify-full"),
    rejected("requiressl", "write sslmode=require, or sslmode=verify-full"),
    rejected("sslnegotiation", TLS),
    rejected("sslpassword", TLS),
    rejected("sslcrl", TLS),
    rejected("sslcrldir", TLS),
    rejected("ssl_min_protocol_version", TLS),
    rejected("ssl_max_protocol_version", TLS),
    rejected("require_auth", "the driver can't restrict it: use sslmode=verify-full"),
    rejected("krbsrvname", "the driver has no Kerberos"),
    rejected("passfile", "set the variable PGPASSFILE"),
    rejected("service", "the driver reads no service file: write host, port, user and database into the URL"),
    rejected(
        "servicefile",
        "the driver reads no service file: write host, port, user and database into the URL",
    ),
    rejected("replication", "locks need an ordinary connection: omit it"),
    rejected("schema", "write polylock.schema for the schema of the locks' tables"),
    rejected("search_path", "write polylock.schema for the schema of the locks' tables"),
    rejected("connection_limit", POOL),
    rejected("pool_size", POOL),
    rejected("pool_max_conns", POOL),
    rejected("max_connections", POOL),
    rejected("pool_timeout", TIMEOUT),
    rejected("socket_timeout", TIMEOUT),
    rejected("statement_timeout", TIMEOUT),
    rejected("connectTimeout", TIMEOUT),
];
