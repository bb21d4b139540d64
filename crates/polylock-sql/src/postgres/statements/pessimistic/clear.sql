-- Deletes the record of a hold, and the rows of its name if no session uses them. Returns (3, 0, 0) if sessions use them.
--
-- Inputs:    $1 name, $2 request.
-- Atomicity: one transaction.
-- Clock:     none.
--
-- Each session does this after the end of its transaction. If several leave at the same time, the last one finds part 0 free.
--
-- The locking read is materialized. In a subquery, the planner may repeat it for each row to delete; after part 0 is deleted, it
-- finds nothing, and part 1 remains.
{begin}
SET LOCAL synchronous_commit = off;
DELETE FROM {p}_sessions WHERE name = $1 AND request = $2;
WITH unused AS MATERIALIZED (SELECT name FROM {p}_rows WHERE name = $1 AND part = 0 FOR UPDATE SKIP LOCKED)
DELETE FROM {p}_rows AS entry USING unused WHERE entry.name = unused.name;
SELECT 3::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 0;
