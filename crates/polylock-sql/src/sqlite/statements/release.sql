-- Releases if held: a row (1 if somebody waits for the lock, else 0), or none. Who did not hold may wait still: `withdraw.sql`. One
-- who held has no place in the queue (by the trigger of `schema.sql`).
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
DELETE FROM {p}_holds WHERE name = ?1 AND request = ?2
RETURNING EXISTS (SELECT 1 FROM {p}_waiters WHERE name = ?1 AND expires_at > {now});
