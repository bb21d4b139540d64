-- Waits for the lock, in the transaction that `enter.sql` opened. Answers with (2, 0, 0) when it holds it.
--
-- Inputs:    $1 name, $2 for how many ms the transaction may be silent from then on; {strength} how to lock.
-- Atomicity: the statement of an open transaction.
-- Clock:     the server's.
--
-- A server does not notice while a statement waits that the client is gone, so each wait has an end.
SET SESSION innodb_lock_wait_timeout = {slice}, {limit};
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
