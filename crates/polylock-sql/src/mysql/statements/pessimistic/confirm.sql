-- Extends the time that the transaction may be silent. Returns (1, identity), or an error or no row if it is not the transaction
-- that holds the lock; and (4, 0, 0) if the hold is marked as broken.
--
-- Inputs:    $1 time in ms, $2 and $3 the identity of the session, $4 name, $5 request.
-- Atomicity: statements of an open transaction.
-- Clock:     the server's.
SET SESSION {limit};
ROLLBACK TO SAVEPOINT polylock;
SELECT 1, $2, $3 FROM DUAL WHERE is_used_lock({session}) = connection_id();
SELECT 4, 0, 0 FROM {p}_sessions WHERE name = $4 AND request = $5 AND notice IS NOT NULL;
