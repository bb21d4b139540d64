-- Makes all later tokens of a shard of the names greater than a number. Returns (the last token before, a number that all later tokens
-- exceed), or no row if there is no gate.
--
-- Inputs:    $1 name, $2 the number; {gates} is the table with the last token of each shard, and {mask} the greatest shard.
-- Atomicity: one transaction, which locks the gate.
-- Clock:     none.
--
-- These servers show a commit to others before it is on the disk. So the statement changes the gate in any case, and returns when that is
-- on the disk with all that was committed before.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
START TRANSACTION;
UPDATE {p}_{gates} SET token = greatest(last_insert_id(token) + 1, $2) WHERE shard = (crc32($1) & {mask});
SELECT CAST(last_insert_id() AS SIGNED), $2 FROM DUAL WHERE row_count() = 1;
COMMIT;
