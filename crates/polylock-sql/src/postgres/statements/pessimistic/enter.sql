-- Joins the users of a name, and takes its lock if it is free. Returns (1, connection, transaction) and, if it holds the lock,
-- (2, 0, 0).
--
-- Inputs:    $1 name, $2 the time in ms that the transaction may be silent; {strength} FOR UPDATE or FOR SHARE.
-- Atomicity: two transactions. The first makes the rows visible to all sessions. The second stays open: it is the hold, or the
--            queue entry of a waiter.
-- Clock:     the server's, which ends a transaction that has been silent for too long.
--
-- Part 1 is inserted while part 0 is locked: a session that deletes both in between would leave a part 1 that nobody deletes.
--
-- Part 0 is locked first, which prevents the deletion of both rows: if part 1 is locked then, another session holds the lock. If
-- part 0 is missing, another session has deleted it after it was inserted; then the result is void, and the caller retries from
-- the start.
BEGIN ISOLATION LEVEL READ COMMITTED;
{pin}
SET LOCAL synchronous_commit = off;
SET LOCAL statement_timeout = {patience};
INSERT INTO {p}_rows (name, part) VALUES ($1, 0) ON CONFLICT DO NOTHING;
INSERT INTO {p}_rows (name, part) SELECT name, 1 FROM {p}_rows WHERE name = $1 AND part = 0 FOR SHARE ON CONFLICT DO NOTHING;
COMMIT;
BEGIN ISOLATION LEVEL READ COMMITTED;
{pin}
SET LOCAL synchronous_commit = off;
SET LOCAL statement_timeout = {patience};
SET LOCAL lock_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = $2;
SELECT 1::bigint, {identity} FROM {p}_rows WHERE name = $1 AND part = 0 FOR SHARE;
SELECT 2::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 1 {strength} SKIP LOCKED;
