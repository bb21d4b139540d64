-- Where a request stands: a row (token, what is left of the lease, NULL, NULL) if it holds the lock, then a row
-- (NULL, what is left of its lease, request, number of conflicting entries ahead) for the last of those it waits for.
-- No row at all: the lock is its own to take.
--
-- Inputs:    ?1 name, ?2 request, ?4 conflict mask. A request that does not wait stands at the end of the queue.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT token, {left}, NULL, NULL FROM {p}_holds
WHERE name = ?1 AND request = ?2 AND expires_at > {now}
UNION ALL
SELECT * FROM (
    SELECT NULL, {left}, request, count(*) OVER () FROM (
        SELECT 0 AS waits, token AS seq, request, expires_at FROM {p}_holds
        WHERE name = ?1 AND mode & ?4 <> 0 AND request <> ?2 AND expires_at > {now}
        UNION ALL
        SELECT 1, seq, request, expires_at FROM {p}_waiters
        WHERE name = ?1 AND mode & ?4 <> 0 AND request <> ?2 AND expires_at > {now}
        AND seq < coalesce(
            (SELECT seq FROM {p}_waiters WHERE name = ?1 AND request = ?2 AND expires_at > {now}),
            9223372036854775807))
    ORDER BY waits DESC, seq DESC LIMIT 1);
