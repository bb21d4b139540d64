-- Waits for the lock, in the transaction that `enter.sql` opened. Returns (2, 0, 0) when the transaction holds the lock.
--
-- Inputs:    $1 name, $2 the time in ms that the transaction may be silent from then on; {strength} the locking clause.
-- Atomicity: a statement of an open transaction.
-- Clock:     the server's.
--
-- A server does not notice during a wait that the client is gone, so each wait has a time limit.
SET SESSION innodb_lock_wait_timeout = {slice}, {limit};
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
