-- Where a request stands: a row (token, what is left of the lease, NULL, ...) if it holds the lock, then a row
-- (NULL, what is left of its lease, request, number of conflicting entries ahead if it is wanted, own place in the queue and what
-- is left of its time if it has one) for the last of those that it waits for.
-- No row at all: the lock is its own to take.
--
-- Inputs:    ?1 name, ?2 request, ?4 conflict mask, ?5 whether to count. A request that does not wait stands at the end of the queue.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT token, {left}, NULL, NULL, NULL, NULL FROM {p}_holds
WHERE name = ?1 AND request = ?2 AND expires_at > {now}
UNION ALL
SELECT NULL, left, request, ahead, own, own_left FROM (
    SELECT * FROM (
        SELECT 0 AS waits, {left} AS left, request FROM {p}_holds
        WHERE name = ?1 AND mode & ?4 <> 0 AND request <> ?2 AND expires_at > {now}
        ORDER BY token DESC LIMIT 1)
    UNION ALL
    SELECT * FROM (
        SELECT 1, {left}, request FROM {p}_waiters
        WHERE name = ?1 AND mode & ?4 <> 0 AND expires_at > {now} AND seq < {place}
        ORDER BY seq DESC LIMIT 1)
    ORDER BY waits DESC LIMIT 1)
CROSS JOIN (
    SELECT CASE WHEN ?5 THEN (
        SELECT count(*) FROM {p}_holds
        WHERE name = ?1 AND mode & ?4 <> 0 AND request <> ?2 AND expires_at > {now}
    ) + (
        SELECT count(*) FROM {p}_waiters
        WHERE name = ?1 AND mode & ?4 <> 0 AND expires_at > {now} AND seq < {place}
    ) END AS ahead)
LEFT JOIN (
    SELECT seq AS own, {left} AS own_left FROM {p}_waiters WHERE name = ?1 AND request = ?2 AND expires_at > {now});
