-- Writes the record of a job, unless there is one of the same or a greater version, and deletes expired ones.
--
-- Inputs:    $1 name, $2 token, $3 revision, $4 contents, $5 time to keep it in us.
-- Atomicity: one transaction, durable when it returns if {sync} is on.
-- Clock:     read for each row.
{begin}
SET LOCAL synchronous_commit = {sync};
WITH expired AS MATERIALIZED (SELECT name FROM {p}_runs WHERE expires_at <= {now} LIMIT 100 FOR UPDATE SKIP LOCKED)
DELETE FROM {p}_runs AS entry USING expired WHERE entry.name = expired.name;
INSERT INTO {p}_runs AS entry (name, token, revision, contents, expires_at) VALUES ($1, $2, $3, $4, {now} + $5)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, revision = excluded.revision, contents = excluded.contents,
    expires_at = excluded.expires_at
WHERE (entry.token, entry.revision) < (excluded.token, excluded.revision);
