-- The tables, version 2. Later versions: `upgrade/`.
--
-- Inputs:    none.
-- Atomicity: none: each statement is its own transaction, and is harmless where its work is done already, so programs that
--            start at once may all run it.
-- Clock:     read for new gates. Times are whole microseconds since 1970.
--
-- Everything is bytes, compared byte by byte under any character set. A hold has the empty slot if it is exclusive and
-- its own request id otherwise, so the primary key itself refuses a second exclusive holder. A hold with a `notice` is marked as
-- broken.
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
-- The holds that were broken by force, until their leases would have ended: what their holders are told when they renew or
-- release.
CREATE TABLE IF NOT EXISTS {p}_broken (
    name       VARBINARY(255) NOT NULL,
    request    BINARY(16) NOT NULL,
    notice     VARBINARY(1024) NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, request)
) ENGINE=InnoDB;
-- One gate for each shard of the names, which a claim locks first. `token` is the last one given to any of the shard's
-- names.
CREATE TABLE IF NOT EXISTS {p}_gates (
    shard      SMALLINT NOT NULL PRIMARY KEY,
    token      BIGINT NOT NULL
) ENGINE=InnoDB;
-- Tokens begin with the time, so that they go on growing even where gates were lost and are made anew: one is given less
-- often than once in a microsecond.
INSERT IGNORE INTO {p}_gates (shard, token)
SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n + 256 * e.n, {now} FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS d,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS e;
