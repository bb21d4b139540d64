//! URL keys of Connector/J, of Go's and Python's drivers and of programs that read the same URLs, that the driver does not know.

use crate::engine::config::{DriverKey, ignored, rejected};

const TIMEOUT: &str = "polylock.operation_timeout limits every operation, and connect_timeout, in seconds, the opening of a connection";
const POOL: &str = "it configures another pool: write polylock.connections";
const TLS: &str = "write ssl-mode=required, verify_ca, verify_identity or disabled, and ssl-ca";

pub(super) const DRIVER_KEYS: &[DriverKey] = &[
    // Names are stored as bytes, times as numbers, and the store uses no prepared statements.
    ignored("characterEncoding"),
    ignored("useUnicode"),
    ignored("connectionCollation"),
    ignored("parseTime"),
    ignored("loc"),
    ignored("serverTimezone"),
    ignored("connectionTimeZone"),
    ignored("forceConnectionTimeZoneToSession"),
    ignored("useLegacyDatetimeCode"),
    ignored("zeroDateTimeBehavior"),
    ignored("tinyInt1isBit"),
    ignored("nullCatalogMeansCurrent"),
    ignored("cachePrepStmts"),
    ignored("prepStmtCacheSize"),
    ignored("prepStmtCacheSqlLimit"),
    ignored("useServerPrepStmts"),
    ignored("rewriteBatchedStatements"),
    ignored("interpolateParams"),
    ignored("multiStatements"),
    ignored("allowMultiQueries"),
    ignored("clientFoundRows"),
    ignored("columnsWithAlias"),
    // The store always replaces a lost connection.
    ignored("autoReconnect"),
    ignored("maxReconnects"),
    ignored("tcpKeepAlive"),
    // The driver sends a password only in a form that no other party than the server can read.
    ignored("allowPublicKeyRetrieval"),
    ignored("allowNativePasswords"),
    rejected("allowCleartextPasswords", "the driver sends no password in clear text: omit it"),
    rejected("useSSL", TLS),
    rejected("requireSSL", TLS),
    rejected("verifyServerCertificate", TLS),
    rejected("sslMode", TLS),
    rejected("ssl_mode", TLS),
    rejected("ssl", TLS),
    rejected("tls", TLS),
    rejected("trustCertificateKeyStoreUrl", TLS),
    rejected("unix_socket", "write socket"),
    rejected("unixSocket", "write socket"),
    rejected("timeout", TIMEOUT),
    rejected("readTimeout", TIMEOUT),
    rejected("writeTimeout", TIMEOUT),
    rejected("connectTimeout", TIMEOUT),
    rejected("socketTimeout", TIMEOUT),
    rejected("connection_limit", POOL),
    rejected("connectionLimit", POOL),
    rejected("pool_size", POOL),
    rejected("max_connections", POOL),
];
