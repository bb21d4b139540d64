//! URL keys of libpq, and of programs that read the same URLs, that the driver does not know.

use polylock_core::url::driver_keys::{DriverKey, ignored, one_of, rejected};

const TLS: &str = "the driver does not support it: use sslmode, sslrootcert, sslcert and sslkey";

pub(super) const DRIVER_KEYS: &[DriverKey] = &[
    // Each operation has its own time limit; the operating system has its own TCP settings.
    ignored(&[
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "fallback_application_name",
    ]),
    // The store uses no prepared statements.
    ignored(&["statement-cache-capacity", "statement_cache_size", "prepared_statements", "pgbouncer"]),
    one_of(&["client_encoding"], &["utf8", "utf-8", "auto"], "names of locks are UTF-8: omit it"),
    // The store always needs the primary, and refuses a replica.
    one_of(
        &["target_session_attrs"],
        &["any", "read-write", "primary"],
        "locks need the primary: omit it, or write read-write",
    ),
    one_of(&["load_balance_hosts"], &["disable"], "locks need the primary: omit it"),
    one_of(
        &["channel_binding"],
        &["prefer", "disable"],
        "the driver can't bind the channel: omit it, and write sslmode=verify-full, which also checks the server",
    ),
    one_of(&["gssencmode"], &["disable", "prefer"], "the driver has no GSSAPI: use sslmode"),
    one_of(&["sslcompression"], &["0"], TLS),
    one_of(&["sslsni"], &["1"], TLS),
    rejected(&["ssl", "requiressl"], "write sslmode=require, or sslmode=verify-full"),
    rejected(
        &[
            "sslnegotiation",
            "sslpassword",
            "sslcrl",
            "sslcrldir",
            "ssl_min_protocol_version",
            "ssl_max_protocol_version",
        ],
        TLS,
    ),
    rejected(&["require_auth"], "the driver can't restrict it: use sslmode=verify-full"),
    rejected(&["krbsrvname"], "the driver has no Kerberos"),
    rejected(&["passfile"], "set the variable PGPASSFILE"),
    rejected(
        &["service", "servicefile"],
        "the driver reads no service file: write host, port, user and database into the URL",
    ),
    rejected(&["replication"], "locks need an ordinary connection: omit it"),
    rejected(&["schema", "search_path"], "write polylock.schema for the schema of the locks' tables"),
    rejected(
        &["connection_limit", "pool_size", "pool_max_conns", "max_connections"],
        "it configures another pool: write polylock.connections",
    ),
    rejected(
        &["pool_timeout", "socket_timeout", "statement_timeout", "connectTimeout"],
        "polylock.operation_timeout limits every operation",
    ),
];
