-- Deletes unused rows: those of holders that died, and notices that their holders did not read in time.
--
-- Inputs:    $1 maximum number of names.
-- Atomicity: one transaction.
-- Clock:     read for each row.
{begin}
SET LOCAL synchronous_commit = off;
DELETE FROM {p}_rows AS entry USING (
    SELECT name FROM {p}_rows WHERE part = 0 LIMIT $1 FOR UPDATE SKIP LOCKED) AS unused
WHERE entry.name = unused.name;
DELETE FROM {p}_sessions AS entry WHERE (notice IS NULL OR expires_at <= {now}) AND NOT ({live});
