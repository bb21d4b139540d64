-- Releases if held, withdraws if waiting, and hands the lock to the next waiters, first come, first served: to each that conflicts neither
-- with a holder nor with a waiter before it. Returns a row (1) for an entry that was released or withdrawn, or (0) for a hold that had
-- expired, then a row (request, queue position, channel, ticket) for each of the next waiters, then a row (request, token, remaining lease)
-- for each that was granted the lock.
--
-- A grant lasts for the remaining time of the queue entry, and its holder extends it; so a waiter that has died holds the lock no longer
-- than it would have waited.
--
-- Inputs:    ?1 name, ?2 request, ?3 its process if it is released because that has ended, otherwise NULL: an entry of a process that has
--            ended may have been excepted from that before.
-- Atomicity: one write transaction.
-- Cost:      reads the entries that are granted the lock, the expired ones between them, and the next one.
-- Clock:     read by each statement, after the write lock was taken.
BEGIN IMMEDIATE;
DELETE FROM {p}_holds WHERE name = ?1 AND ((request = ?2 AND (?3 IS NULL OR process = ?3)) OR expires_at <= {now})
RETURNING request = ?2;
-- Before the grants, so that the request is not granted the lock itself.
DELETE FROM {p}_waiters WHERE name = ?1 AND request = ?2 AND (?3 IS NULL OR process = ?3) RETURNING 1;
{next} SELECT request, next.seq, channel, ticket FROM next;
{next} INSERT OR REPLACE INTO {p}_holds (name, slot, request, mode, owner, label, since, expires_at, process)
SELECT ?1, CASE WHEN mode = {exclusive} THEN x'' ELSE request END, request, mode, owner, label, {now}, expires_at, process FROM next ORDER BY seq
RETURNING request, token, {left};
COMMIT;
