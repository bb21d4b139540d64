-- Deletes rows that nobody uses: those that holders which died have left.
--
-- Inputs:    $1 of how many names at the most.
-- Atomicity: one statement.
-- Clock:     none.
{begin}
SET LOCAL synchronous_commit = off;
DELETE FROM {p}_rows AS entry USING (
    SELECT name FROM {p}_rows WHERE part = 0 LIMIT $1 FOR UPDATE SKIP LOCKED) AS unused
WHERE entry.name = unused.name;
