-- The records of the last runs of jobs, which outlive the holds of the locks. A record is replaced by one of a greater version: the token
-- of the hold under which it was written, and the revision under that hold.
CREATE TABLE IF NOT EXISTS {p}_runs (
    name       VARBINARY(255) NOT NULL PRIMARY KEY,
    token      BIGINT NOT NULL,
    revision   BIGINT NOT NULL,
    contents   VARBINARY(1024) NOT NULL,
    expires_at BIGINT NOT NULL,
    KEY expiry (expires_at)
) ENGINE=InnoDB;
