-- Deletes the record of a hold, and the rows of its name if nobody uses them; an error if somebody does, and then the
-- transaction is open still.
--
-- Inputs:    $1 name, $2 request; {forget} is where the record is deleted at once, {and_forget} where in one transaction.
-- Atomicity: one transaction.
-- Clock:     none.
--
-- Everybody does this after the end of his transaction. Of those who leave at the same time the last finds part 0 free.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION wait_timeout = DEFAULT, innodb_lock_wait_timeout = 1;
{forget}
START TRANSACTION;
{and_forget}
SELECT 0, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 0 FOR UPDATE NOWAIT;
DELETE FROM {p}_rows WHERE name = $1;
COMMIT;
