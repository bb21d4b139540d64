-- Releases if held and the lock has no waiters: one row is deleted, or none. A request that did not hold may be waiting: `withdraw.sql`. A
-- hold with waiters is handed over: `hand_over.sql`.
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
DELETE FROM {p}_holds WHERE name = ?1 AND request = ?2
AND NOT EXISTS (SELECT 1 FROM {p}_waiters WHERE name = ?1 AND expires_at > {now});
