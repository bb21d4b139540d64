-- Sets the time limits of a wait.
--
-- Inputs:    $1 the time in ms that the transaction may be silent from then on.
-- Atomicity: statements of an open transaction.
-- Clock:     the server's.
--
-- A server does not notice during a wait that the client is gone, so each wait has a time limit, after which the transaction
-- continues from the savepoint.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = {slice};
SET LOCAL idle_in_transaction_session_timeout = $1;
SAVEPOINT slice;
