-- The tables of polylock.strategy=pessimistic, version 2. Later versions: `upgrade/`.
--
-- Inputs:    none.
-- Atomicity: none: each statement is its own transaction, and is harmless where its work is done already, so programs that
--            start at once may all run it.
-- Clock:     the server's, once.
--
-- Each name in use has two rows, which hold nothing and are only there to be locked: of part 0, which all who use the
-- name lock in share mode, and of part 1, which its holder locks.
CREATE TABLE IF NOT EXISTS {p}_rows (
    name VARBINARY(255) NOT NULL, part TINYINT NOT NULL, PRIMARY KEY (name, part)) ENGINE=InnoDB;
-- Who holds each lock, for people and for breaks; it grants nothing. A row counts as long as the session that it names lives, or,
-- with a `notice` of a break, until `expires_at`.
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
-- The last token given to any name of a shard. They begin with the time, so that tokens go on growing even if the tables
-- are made anew: a token is given less often than once in a microsecond.
CREATE TABLE IF NOT EXISTS {p}_tokens (shard SMALLINT NOT NULL PRIMARY KEY, token BIGINT NOT NULL) ENGINE=InnoDB;
INSERT IGNORE INTO {p}_tokens (shard, token) SELECT a.n + 4 * b.n + 16 * c.n, {now} FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c;
