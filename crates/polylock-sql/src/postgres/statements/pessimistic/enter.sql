-- Joins those who use a name, and takes its lock if it is free. Answers with (1, connection, transaction) and, if it
-- holds the lock, (2, 0, 0).
--
-- Inputs:    $1 name, $2 for how many ms the transaction may be silent; {strength} FOR UPDATE or FOR SHARE.
-- Atomicity: two transactions. The first makes the rows for everybody to see. The second stays open: it is the hold, or
--            the place of one who waits.
-- Clock:     the server's, which ends a transaction that has been silent for too long.
--
-- Part 0 first: whoever has it keeps both rows from being deleted, so if part 1 is not to be had, somebody holds it. If
-- part 0 is not there, somebody has deleted it since it was made; then nothing counts, and all is tried again.
BEGIN ISOLATION LEVEL READ COMMITTED;
{pin}
SET LOCAL synchronous_commit = off;
SET LOCAL statement_timeout = {patience};
INSERT INTO {p}_rows (name, part) VALUES ($1, 0), ($1, 1) ON CONFLICT DO NOTHING;
COMMIT;
BEGIN ISOLATION LEVEL READ COMMITTED;
{pin}
SET LOCAL synchronous_commit = off;
SET LOCAL statement_timeout = {patience};
SET LOCAL lock_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = $2;
SELECT 1::bigint, {identity} FROM {p}_rows WHERE name = $1 AND part = 0 FOR SHARE;
SELECT 2::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 1 {strength} SKIP LOCKED;
