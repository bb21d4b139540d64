-- Extends a live hold. One row changes, or none if there is no such hold or it is marked as broken.
--
-- Inputs:    ?1 name, ?2 request, ?3 TTL in us.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
UPDATE {p}_holds SET expires_at = {until ?3} WHERE name = ?1 AND request = ?2 AND expires_at > {now}
AND notice IS NULL;
