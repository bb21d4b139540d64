-- Writes the record of a job, unless there is one of the same or a greater version, and deletes expired ones.
--
-- Inputs:    $1 name, $2 token, $3 revision, $4 contents, $5 time to keep it in us.
-- Atomicity: one transaction; durable when it returns, if the server's settings guarantee that.
-- Clock:     read once by each statement.
--
-- The assignments are made in their order, and each one sees the values of those before it. So the version is assigned last.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
START TRANSACTION;
DELETE FROM {p}_runs WHERE expires_at <= {now} LIMIT 100;
INSERT INTO {p}_runs (name, token, revision, contents, expires_at) VALUES ($1, $2, $3, $4, {now} + $5)
ON DUPLICATE KEY UPDATE
    contents = if(token < $2 OR (token = $2 AND revision < $3), $4, contents),
    expires_at = if(token < $2 OR (token = $2 AND revision < $3), {now} + $5, expires_at),
    revision = if(token < $2 OR (token = $2 AND revision < $3), $3, revision),
    token = greatest(token, $2);
COMMIT;
