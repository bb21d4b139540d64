-- The records of the last runs of jobs, which outlive the holds of the locks. A record is replaced by one of a greater version: the token
-- of the hold under which it was written, and the revision under that hold.
CREATE TABLE IF NOT EXISTS {p}_runs (
    name       bytea NOT NULL PRIMARY KEY,
    token      bigint NOT NULL,
    revision   bigint NOT NULL,
    contents   text NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS {t}_runs_expiry ON {p}_runs (expires_at);
