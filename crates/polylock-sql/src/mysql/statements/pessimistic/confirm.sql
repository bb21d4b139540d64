-- Extends the time for which the transaction may be silent. Answers with (1, identity), or with an error or nothing if it is not
-- the transaction that holds the lock.
--
-- Inputs:    $1 time in ms, $2 and $3 the identity of the session.
-- Atomicity: the statement of an open transaction.
-- Clock:     the server's.
SET SESSION {limit};
ROLLBACK TO SAVEPOINT polylock;
SELECT 1, $2, $3 FROM DUAL WHERE is_used_lock({session}) = connection_id();
