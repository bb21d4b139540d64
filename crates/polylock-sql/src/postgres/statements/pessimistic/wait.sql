-- Waits for the lock, in the transaction that `enter.sql` opened. Returns (2, 0, 0) when the transaction holds the lock.
--
-- Inputs:    $1 name; {strength} FOR UPDATE or FOR SHARE.
-- Atomicity: a statement of an open transaction.
-- Clock:     the server's.
SELECT 2::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
