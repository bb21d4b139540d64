-- Extends the time for which the transaction may be silent. Answers with (1, connection, 0), or with an error if it is not
-- the transaction that holds the lock.
--
-- Inputs:    $1 time in ms.
-- Atomicity: the statement of an open transaction.
-- Clock:     the server's.
SET SESSION {limit};
ROLLBACK TO SAVEPOINT polylock;
SELECT 1, CAST(connection_id() AS SIGNED), 0;
