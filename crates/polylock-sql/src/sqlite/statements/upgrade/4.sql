-- The records of the last runs of jobs, which outlive the holds of the locks. A record is replaced by one of a greater version: the token
-- of the hold under which it was written, and the revision under that hold.
CREATE TABLE IF NOT EXISTS {p}_runs (
    name       BLOB NOT NULL PRIMARY KEY,
    token      INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    contents   TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {p}_runs_expiry ON {p}_runs (expires_at);
