-- Extends the time that the transaction may be silent. Returns (1, connection, transaction), for a comparison with the session
-- that holds the lock, and (4, 0, 0) if the hold is marked as broken.
--
-- Inputs:    $1 time in ms, $4 name, $5 request.
-- Atomicity: statements of an open transaction.
-- Clock:     the server's.
SET LOCAL idle_in_transaction_session_timeout = $1;
SELECT 1::bigint, {identity};
SELECT 4::bigint, 0::bigint, 0::bigint FROM {p}_sessions WHERE name = $4 AND request = $5 AND notice IS NOT NULL;
