//! URL keys of Connector/J, of Go's and Python's drivers and of programs that read the same URLs, that the driver does not know.

use polylock_core::url::driver_keys::{DriverKey, ignored, rejected};

pub(super) const DRIVER_KEYS: &[DriverKey] = &[
    // Names are stored as bytes, times as numbers, and the store uses no prepared statements.
    ignored(&[
        "characterEncoding",
        "useUnicode",
        "connectionCollation",
        "parseTime",
        "loc",
        "serverTimezone",
        "connectionTimeZone",
        "forceConnectionTimeZoneToSession",
        "useLegacyDatetimeCode",
        "zeroDateTimeBehavior",
        "tinyInt1isBit",
        "nullCatalogMeansCurrent",
        "cachePrepStmts",
        "prepStmtCacheSize",
        "prepStmtCacheSqlLimit",
        "useServerPrepStmts",
        "rewriteBatchedStatements",
        "interpolateParams",
        "multiStatements",
        "allowMultiQueries",
        "clientFoundRows",
        "columnsWithAlias",
    ]),
    // The store always replaces a lost connection.
    ignored(&["autoReconnect", "maxReconnects", "tcpKeepAlive"]),
    // The driver sends a password only in a form that no other party than the server can read.
    ignored(&["allowPublicKeyRetrieval", "allowNativePasswords"]),
    rejected(&["allowCleartextPasswords"], "the driver sends no password in clear text: omit it"),
    rejected(
        &[
            "useSSL",
            "requireSSL",
            "verifyServerCertificate",
            "sslMode",
            "ssl_mode",
            "ssl",
            "tls",
            "trustCertificateKeyStoreUrl",
        ],
        "write ssl-mode=required, verify_ca, verify_identity or disabled, and ssl-ca",
    ),
    rejected(&["unix_socket", "unixSocket"], "write socket"),
    rejected(
        &["timeout", "readTimeout", "writeTimeout", "connectTimeout", "socketTimeout"],
        "polylock.operation_timeout limits every operation, and connect_timeout, in seconds, the opening of a connection",
    ),
    rejected(
        &["connection_limit", "connectionLimit", "pool_size", "max_connections"],
        "it configures another pool: write polylock.connections",
    ),
];
