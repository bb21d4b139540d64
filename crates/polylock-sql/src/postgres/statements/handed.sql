-- Returns the requests of a list that hold their locks: (request).
--
-- Inputs:    $1 pairs (name, request): one statement serves any number of them.
-- Atomicity: read-only; one statement, so one snapshot.
-- Clock:     read for each row.
{begin}
SELECT encode(hold.request, 'hex')
FROM (VALUES $1) AS waiting (name, request)
JOIN {p}_holds AS hold ON hold.name = waiting.name AND hold.slot IN ('', waiting.request)
    AND hold.request = waiting.request
WHERE hold.expires_at > {now};
