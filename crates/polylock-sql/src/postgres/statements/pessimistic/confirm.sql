-- Extends the time for which the transaction may be silent. Answers with (1, connection, transaction): whether it is the
-- one that holds the lock; and with (4, 0, 0) if the hold is marked as broken.
--
-- Inputs:    $1 time in ms, $4 name, $5 request.
-- Atomicity: the statement of an open transaction.
-- Clock:     the server's.
SET LOCAL idle_in_transaction_session_timeout = $1;
SELECT 1::bigint, {identity};
SELECT 4::bigint, 0::bigint, 0::bigint FROM {p}_sessions WHERE name = $4 AND request = $5 AND notice IS NOT NULL;
