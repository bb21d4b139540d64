-- Sets the time that the transaction may be silent from now on.
--
-- Inputs:    $1 time in ms.
-- Atomicity: a statement of an open transaction.
-- Clock:     the server's.
SET SESSION {limit};
