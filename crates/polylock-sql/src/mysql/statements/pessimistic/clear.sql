-- Deletes the record of a hold, and the rows of its name if no session uses them. If a session uses them, it fails and leaves its
-- transaction open.
--
-- Inputs:    $1 name, $2 request; {forget} deletes the record before the transaction, {and_forget} within it; one of them is
--            empty.
-- Atomicity: one transaction.
-- Clock:     none.
--
-- Each session does this after the end of its transaction. If several leave at the same time, the last one finds part 0 free.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION wait_timeout = DEFAULT, innodb_lock_wait_timeout = 1;
{forget}
START TRANSACTION;
{and_forget}
SELECT 0, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 0 FOR UPDATE NOWAIT;
DELETE FROM {p}_rows WHERE name = $1;
COMMIT;
