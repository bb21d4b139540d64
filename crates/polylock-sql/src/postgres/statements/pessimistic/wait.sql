-- Waits for the lock, in the transaction that `enter.sql` opened. Returns (2, 0, 0) when the transaction holds the lock.
--
-- Inputs:    $1 name, $2 the time in ms that the transaction may be silent from then on; {strength} FOR UPDATE or FOR SHARE.
-- Atomicity: a statement of an open transaction.
-- Clock:     the server's.
--
-- A server does not notice during a wait that the client is gone, so each wait has a time limit, after which the transaction
-- continues from the savepoint.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = {slice};
SET LOCAL idle_in_transaction_session_timeout = $2;
SAVEPOINT slice;
SELECT 2::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
