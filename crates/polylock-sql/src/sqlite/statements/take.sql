-- Takes the lock if it is this request's turn, and leaves the queue in the same step (by the trigger of `schema.sql`). Inserts one row,
-- with the token as its number; none if it is not the request's turn, if it holds the lock already, or if it is refused (`refuse.sql`).
--
-- Inputs:    ?1 name, ?2 request, ?3 mode bit, ?4 conflict mask, ?5 slot, ?6 owner, ?7 label, ?8 TTL in us, ?9 process or NULL.
-- Atomicity: one statement, so one write transaction: the rule is checked and the token issued under the same lock.
-- Clock:     read once, after the write lock was taken.
--
-- `OR REPLACE` is for an expired exclusive holder, the only row that can be in the slot of a request that passes the rule.
INSERT OR REPLACE INTO {p}_holds (name, slot, request, mode, owner, label, since, expires_at, process)
SELECT ?1, ?5, ?2, ?3, ?6, ?7, {now}, {until ?8}, ?9
WHERE NOT EXISTS (
    SELECT 1 FROM {p}_holds
    WHERE name = ?1 AND (mode & ?4 <> 0 OR request = ?2) AND expires_at > {now})
AND NOT EXISTS (
    SELECT 1 FROM {p}_waiters
    WHERE name = ?1 AND mode & ?4 <> 0 AND expires_at > {now} AND seq < {place})
AND NOT EXISTS (SELECT 1 FROM {p}_broken WHERE name = ?1 AND request = ?2 AND expires_at > {now});
