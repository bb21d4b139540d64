-- Deletes unused rows: those of holders that died, and notices that their holders did not read in time.
--
-- Inputs:    $1 maximum number of names.
-- Atomicity: one transaction.
-- Clock:     read for each row.
--
-- The locking read is materialized, as in `clear.sql`.
{begin}
SET LOCAL synchronous_commit = off;
WITH unused AS MATERIALIZED (SELECT name FROM {p}_rows WHERE part = 0 LIMIT $1 FOR UPDATE SKIP LOCKED)
DELETE FROM {p}_rows AS entry USING unused WHERE entry.name = unused.name;
DELETE FROM {p}_sessions AS entry WHERE (notice IS NULL OR expires_at <= {now}) AND NOT ({live});
