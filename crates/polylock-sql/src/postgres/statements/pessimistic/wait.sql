-- Waits for the lock, in the transaction that `enter.sql` opened. Answers with (2, 0, 0) when it holds it.
--
-- Inputs:    $1 name, $2 for how many ms the transaction may be silent from then on; {strength} FOR UPDATE or FOR SHARE.
-- Atomicity: the statement of an open transaction.
-- Clock:     the server's.
--
-- A server does not notice while a statement waits that the client is gone, so each wait has an end, and the transaction
-- goes on from the savepoint.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = {slice};
SET LOCAL idle_in_transaction_session_timeout = $2;
SAVEPOINT slice;
SELECT 2::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
