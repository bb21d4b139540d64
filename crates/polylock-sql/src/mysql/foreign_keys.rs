//! Keys of Connector/J, of Go's and Python's drivers and of programs that read the same URLs, which the driver does not know.

use crate::engine::config::{ForeignKey, harmless, refused};

const TIMEOUT: &str =
    "polylock.timeout limits every operation, and connect_timeout, in seconds, the making of a connection";
const POOL: &str = "it belongs to another pool: write polylock.connections";
const TLS: &str = "write ssl-mode=required, verify_ca, verify_identity or disabled, and ssl-ca";

pub(super) const FOREIGN: &[ForeignKey] = &[
    // Names are kept as bytes, times as numbers, and nothing is prepared.
    harmless("characterEncoding"),
    harmless("useUnicode"),
    harmless("connectionCollation"),
    harmless("parseTime"),
    harmless("loc"),
    harmless("serverTimezone"),
    harmless("connectionTimeZone"),
    harmless("forceConnectionTimeZoneToSession"),
    harmless("useLegacyDatetimeCode"),
    harmless("zeroDateTimeBehavior"),
    harmless("tinyInt1isBit"),
    harmless("nullCatalogMeansCurrent"),
    harmless("cachePrepStmts"),
    harmless("prepStmtCacheSize"),
    harmless("prepStmtCacheSqlLimit"),
    harmless("useServerPrepStmts"),
    harmless("rewriteBatchedStatements"),
    harmless("interpolateParams"),
    harmless("multiStatements"),
    harmless("allowMultiQueries"),
    harmless("clientFoundRows"),
    harmless("columnsWithAlias"),
    // A lost connection is replaced in any case.
    harmless("autoReconnect"),
    harmless("maxReconnects"),
    harmless("tcpKeepAlive"),
    // The driver never sends a password that anybody but the server could read.
    harmless("allowPublicKeyRetrieval"),
    harmless("allowNativePasswords"),
    refused("allowCleartextPasswords", "the driver sends no password in clear text: leave it out"),
    refused("useSSL", TLS),
    refused("requireSSL", TLS),
    refused("verifyServerCertificate", TLS),
    refused("sslMode", TLS),
    refused("ssl_mode", TLS),
    refused("ssl", TLS),
    refused("tls", TLS),
    refused("trustCertificateKeyStoreUrl", TLS),
    refused("unix_socket", "write socket"),
    refused("unixSocket", "write socket"),
    refused("timeout", TIMEOUT),
    refused("readTimeout", TIMEOUT),
    refused("writeTimeout", TIMEOUT),
    refused("connectTimeout", TIMEOUT),
    refused("socketTimeout", TIMEOUT),
    refused("connection_limit", POOL),
    refused("connectionLimit", POOL),
    refused("pool_size", POOL),
    refused("max_connections", POOL),
];
