-- Releases if held, withdraws if waiting, and hands the lock to every waiter whose turn it is then, first come, first served: to each that conflicts neither
-- with a holder nor with a waiter before it. Answers with a row (1) for what was released or withdrawn, or (0) for a hold that had
-- expired, then a row (request, place in the queue, channel, ticket) for each waiter whose turn it is, then a row (request, token, what
-- is left of the lease) for each that was granted the lock.
--
-- A grant lasts for what is left of the place in the queue, and its holder extends it; so one that has died holds the lock no longer
-- than it would have waited.
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one write transaction.
-- Cost:      looks at those that are granted the lock, at the expired ones between them, and at the next one.
-- Clock:     read by each statement, after the write lock was taken.
BEGIN IMMEDIATE;
DELETE FROM {p}_holds WHERE name = ?1 AND (request = ?2 OR expires_at <= {now}) RETURNING request = ?2;
-- Before the grants, so that it is not granted the lock itself.
DELETE FROM {p}_waiters WHERE name = ?1 AND request = ?2 RETURNING 1;
{next} SELECT request, next.seq, channel, ticket FROM next;
{next} INSERT OR REPLACE INTO {p}_holds (name, slot, request, mode, owner, label, since, expires_at)
SELECT ?1, CASE WHEN mode = {exclusive} THEN x'' ELSE request END, request, mode, owner, label, {now}, expires_at FROM next ORDER BY seq
RETURNING request, token, {left};
COMMIT;
