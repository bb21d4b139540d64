-- Which of some requests neither hold nor wait any more.
--
-- Inputs:    $1 pairs (name, request): one statement serves any number of them.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read for each row.
{begin}
SELECT encode(watched.request, 'hex') FROM (VALUES $1) AS watched (name, request)
WHERE NOT EXISTS (
    SELECT 1 FROM {p}_holds AS hold
    WHERE hold.name = watched.name AND hold.slot IN ('', watched.request)
    AND hold.request = watched.request AND hold.expires_at > {now})
AND NOT EXISTS (
    SELECT 1 FROM {p}_waiters AS waiter
    WHERE waiter.name = watched.name AND waiter.request = watched.request AND waiter.expires_at > {now});
