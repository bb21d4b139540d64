-- The tables, version 1.
--
-- Inputs:    none.
-- Atomicity: none: each statement is its own transaction, and is harmless where its work is done already, so programs that
--            start at once may all run it.
-- Clock:     none. Times are whole microseconds since 1970.
--
-- Everything is bytes, compared byte by byte under any character set. A hold has the empty slot if it is exclusive and
-- its own request id otherwise, so the primary key itself refuses a second exclusive holder. The token is the counter
-- of its column, which InnoDB keeps on the disk when the rows are gone; it must never be reset.
CREATE TABLE IF NOT EXISTS {p}_holds (
    token      BIGINT NOT NULL AUTO_INCREMENT,
    name       VARBINARY(255) NOT NULL,
    slot       VARBINARY(16) NOT NULL,
    request    BINARY(16) NOT NULL,
    mode       TINYINT NOT NULL,
    owner      VARBINARY(255) NOT NULL,
    label      VARBINARY(255) NOT NULL,
    since      BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, slot),
    KEY token (token)
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
-- A claim locks the row of its name's shard first. The rows never change.
CREATE TABLE IF NOT EXISTS {p}_gates (shard SMALLINT NOT NULL PRIMARY KEY) ENGINE=InnoDB;
INSERT IGNORE INTO {p}_gates (shard)
SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n + 256 * e.n FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS d,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS e;
CREATE TABLE IF NOT EXISTS {p}_meta (name VARBINARY(64) NOT NULL PRIMARY KEY, value BIGINT NOT NULL) ENGINE=InnoDB;
