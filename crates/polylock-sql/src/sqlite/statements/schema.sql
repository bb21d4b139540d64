-- The tables, version 2. Later versions: `upgrade/`.
--
-- Inputs:    {found} is the version that was found, 0 if none.
-- Atomicity: part of a write transaction, with the steps to later versions. It fails if another process has changed the version, or
--            the oldest version with programs that may use the tables, since this process read it.
-- Clock:     read by the trigger, and for the first token. Times are whole microseconds since 1970.
--
-- A hold has the empty slot if it is exclusive and its own request id otherwise, so the unique index itself refuses a second exclusive
-- holder. AUTOINCREMENT keeps its high-water mark in `sqlite_sequence`: a token is never issued twice, even after all rows were deleted.
-- Names are blobs: compared byte by byte in a file of any encoding. A hold with a `notice` is marked as broken.
-- `{row}` is the version, `oldest` the oldest version with programs that may use the tables. The update fails if it changes a row, because
-- the tables are strict.
CREATE TABLE IF NOT EXISTS {p}_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO {p}_meta (key, value) VALUES ('oldest', {oldest});
UPDATE {p}_meta SET value = 'changed meanwhile' WHERE (key = '{row}' AND value <> {found}) OR (key = 'oldest' AND value < {oldest});
CREATE TABLE IF NOT EXISTS {p}_holds (
    token      INTEGER PRIMARY KEY AUTOINCREMENT,
    name       BLOB NOT NULL,
    slot       BLOB NOT NULL,
    request    BLOB NOT NULL CHECK (length(request) = 16),
    mode       INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    label      TEXT NOT NULL,
    since      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    notice     TEXT,
    UNIQUE (name, slot)
) STRICT;
CREATE TABLE IF NOT EXISTS {p}_waiters (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    name       BLOB NOT NULL,
    request    BLOB NOT NULL CHECK (length(request) = 16),
    mode       INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    label      TEXT NOT NULL,
    since      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    UNIQUE (name, request)
) STRICT;
-- With hundreds of waiters on a lock no statement reads them one by one: the first index finds and counts the entries ahead of a request,
-- the second finds the expired ones.
CREATE INDEX IF NOT EXISTS {p}_waiters_order ON {p}_waiters (name, seq, mode, expires_at);
CREATE INDEX IF NOT EXISTS {p}_waiters_expiry ON {p}_waiters (name, expires_at);
-- A request that is granted the lock leaves the queue in the same step: it holds or waits, never both. The expired rows of the name are
-- deleted with it.
CREATE TRIGGER IF NOT EXISTS {p}_granted AFTER INSERT ON {p}_holds BEGIN
    DELETE FROM {p}_waiters WHERE name = new.name AND request = new.request;
    DELETE FROM {p}_waiters WHERE name = new.name AND expires_at <= {now};
    DELETE FROM {p}_holds WHERE name = new.name AND expires_at <= {now};
END;
-- The holds that were broken by force, until their leases would have ended: the notice is returned to a holder that renews or releases.
CREATE TABLE IF NOT EXISTS {p}_broken (
    name       BLOB NOT NULL,
    request    BLOB NOT NULL CHECK (length(request) = 16),
    notice     TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (name, request)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {p}_broken_expiry ON {p}_broken (expires_at);
-- Tokens begin with the time, so that they keep growing if the file is deleted or the tables are dropped: fewer than one token per
-- microsecond is issued.
INSERT INTO sqlite_sequence (name, seq) SELECT '{p}_holds', 0
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = '{p}_holds');
UPDATE sqlite_sequence SET seq = max(seq, {now})
WHERE name = '{p}_holds' AND NOT EXISTS (SELECT 1 FROM {p}_meta WHERE key = '{row}');
