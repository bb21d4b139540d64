-- The tables, version 2. Later versions: `upgrade/`.
--
-- Inputs:    none.
-- Atomicity: none: each statement is its own transaction, and has no effect if it was run before, so programs that start at the
--            same time may all run it.
-- Clock:     read for new gates. Times are whole microseconds since 1970.
--
-- All texts are bytes, compared byte by byte under any character set. A hold has the empty slot if it is exclusive and its own
-- request id otherwise, so the primary key itself refuses a second exclusive holder. A hold with a `notice` is marked as broken.
CREATE TABLE IF NOT EXISTS {p}_holds (
    name       VARBINARY(255) NOT NULL,
    slot       VARBINARY(16) NOT NULL,
    request    BINARY(16) NOT NULL,
    token      BIGINT NOT NULL,
    mode       TINYINT NOT NULL,
    owner      VARBINARY(255) NOT NULL,
    label      VARBINARY(255) NOT NULL,
    since      BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    notice     VARBINARY(1024),
    PRIMARY KEY (name, slot)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS {p}_waiters (
    name       VARBINARY(255) NOT NULL,
    request    BINARY(16) NOT NULL,
    seq        BIGINT NOT NULL,
    mode       TINYINT NOT NULL,
    owner      VARBINARY(255) NOT NULL,
    label      VARBINARY(255) NOT NULL,
    since      BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, request),
    KEY place (name, seq, mode)
) ENGINE=InnoDB;
-- The holds that were broken by force, until their leases would have ended: renewals and releases of their holders return the
-- notice.
CREATE TABLE IF NOT EXISTS {p}_broken (
    name       VARBINARY(255) NOT NULL,
    request    BINARY(16) NOT NULL,
    notice     VARBINARY(1024) NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, request)
) ENGINE=InnoDB;
-- One gate for each shard of the names, which a claim locks first. `token` is the last one drawn for any name of the shard.
CREATE TABLE IF NOT EXISTS {p}_gates (
    shard      SMALLINT NOT NULL PRIMARY KEY,
    token      BIGINT NOT NULL
) ENGINE=InnoDB;
-- Tokens begin with the time, so that they continue to grow if gates were lost and are created again: fewer than one token is
-- drawn per microsecond.
INSERT IGNORE INTO {p}_gates (shard, token)
SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n + 256 * e.n, {now} FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS d,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS e;
