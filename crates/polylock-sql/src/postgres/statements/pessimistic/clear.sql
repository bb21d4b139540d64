-- Deletes the rows of a name that nobody uses.
--
-- Inputs:    $1 name.
-- Atomicity: one statement.
-- Clock:     none.
--
-- Everybody does this after the end of his transaction. Of those who leave at the same time the last finds part 0 free.
{begin}
SET LOCAL synchronous_commit = off;
DELETE FROM {p}_rows AS entry USING (
    SELECT name FROM {p}_rows WHERE name = $1 AND part = 0 FOR UPDATE SKIP LOCKED) AS unused
WHERE entry.name = unused.name;
