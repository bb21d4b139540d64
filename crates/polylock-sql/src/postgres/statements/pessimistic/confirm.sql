-- Extends the time for which the transaction may be silent. Answers with (1, connection, transaction): whether it is the
-- one that holds the lock.
--
-- Inputs:    $1 time in ms.
-- Atomicity: the statement of an open transaction.
-- Clock:     the server's.
SET LOCAL idle_in_transaction_session_timeout = $1;
SELECT 1::bigint, {identity};
