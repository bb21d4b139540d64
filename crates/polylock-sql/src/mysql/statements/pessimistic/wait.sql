-- Waits for the lock, in the transaction that `enter.sql` opened. Returns (2, 0, 0) when the transaction holds the lock.
--
-- Inputs:    $1 name; {strength} the locking clause.
-- Atomicity: a statement of an open transaction.
-- Clock:     the server's.
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
