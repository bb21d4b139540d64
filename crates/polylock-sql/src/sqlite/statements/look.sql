-- The state of a request: a row (token, remaining lease, NULL, ...) if it holds the lock, then a row (NULL, remaining lease, request,
-- number of conflicting entries ahead if it is requested, own queue position and its remaining time if there is one, process or NULL) for
-- the last entry that it waits for. No row: no entry is in its way.
--
-- Inputs:    ?1 name, ?2 request, ?4 conflict mask, ?5 true to count. A request without a queue entry counts as the end of the queue.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT token, {left}, NULL, NULL, NULL, NULL, NULL FROM {p}_holds
WHERE name = ?1 AND request = ?2 AND expires_at > {now}
UNION ALL
SELECT NULL, left, request, ahead, own, own_left, process FROM (
    SELECT * FROM (
        SELECT 0 AS waits, {left} AS left, request, process FROM {p}_holds
        WHERE name = ?1 AND mode & ?4 <> 0 AND request <> ?2 AND expires_at > {now}
        ORDER BY token DESC LIMIT 1)
    UNION ALL
    SELECT * FROM (
        SELECT 1, {left}, request, process FROM {p}_waiters
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
