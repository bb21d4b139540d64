-- Sets the time that the transaction may be silent from now on.
--
-- Inputs:    $1 time in ms.
-- Atomicity: a statement of an open transaction.
-- Clock:     the server's.
SET LOCAL idle_in_transaction_session_timeout = $1;
