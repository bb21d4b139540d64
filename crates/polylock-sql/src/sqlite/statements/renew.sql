-- Extends a live hold; no row if there is none.
--
-- Inputs:    ?1 name, ?2 request, ?3 TTL in us.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
UPDATE {p}_holds SET expires_at = {until ?3}
WHERE name = ?1 AND request = ?2 AND expires_at > {now}
RETURNING 1;
