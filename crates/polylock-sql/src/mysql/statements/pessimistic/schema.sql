-- The tables of polylock.strategy=pessimistic, version 2. Later versions: `upgrade/`.
--
-- Inputs:    none.
-- Atomicity: none: each statement is its own transaction, and has no effect if it was run before, so programs that start at the
--            same time may all run it.
-- Clock:     the server's, once.
--
-- Each name in use has two rows without data, which exist only to be locked: part 0, which all users of the name lock in share
-- mode, and part 1, which the holder locks.
CREATE TABLE IF NOT EXISTS {p}_rows (
    name VARBINARY(255) NOT NULL, part TINYINT NOT NULL, PRIMARY KEY (name, part)) ENGINE=InnoDB;
-- The record of each hold, for inspection and breaks; it grants nothing. A row is valid while its session lives or, with the
-- `notice` of a break, until `expires_at`.
CREATE TABLE IF NOT EXISTS {p}_sessions (
    name       VARBINARY(255) NOT NULL,
    request    BINARY(16) NOT NULL,
    session_1  BIGINT NOT NULL,
    session_2  BIGINT NOT NULL,
    token      BIGINT NOT NULL,
    mode       TINYINT NOT NULL,
    owner      VARBINARY(255) NOT NULL,
    label      VARBINARY(255) NOT NULL,
    since      BIGINT NOT NULL,
    ttl        BIGINT NOT NULL,
    notice     VARBINARY(1024),
    expires_at BIGINT,
    PRIMARY KEY (name, request)
) ENGINE=InnoDB;
-- The last token drawn for any name of a shard. Tokens begin with the time, so that they continue to grow if the tables are
-- created again: fewer than one token is drawn per microsecond.
CREATE TABLE IF NOT EXISTS {p}_tokens (shard SMALLINT NOT NULL PRIMARY KEY, token BIGINT NOT NULL) ENGINE=InnoDB;
INSERT IGNORE INTO {p}_tokens (shard, token) SELECT a.n + 4 * b.n + 16 * c.n, {now} FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c;
