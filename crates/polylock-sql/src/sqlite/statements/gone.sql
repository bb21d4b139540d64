-- Returns those of the given requests that neither hold nor wait any more.
--
-- Inputs:    ?1 a JSON array of pairs [name, request], both hexadecimal: one statement serves any number of them.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
WITH watched (name, request) AS MATERIALIZED (
    SELECT unhex(value ->> 0), unhex(value ->> 1) FROM json_each(?1))
SELECT request FROM watched
WHERE NOT EXISTS (
    SELECT 1 FROM {p}_holds AS hold
    WHERE hold.name = watched.name AND hold.slot IN (x'', watched.request)
    AND hold.request = watched.request AND hold.expires_at > {now})
AND NOT EXISTS (
    SELECT 1 FROM {p}_waiters AS waiter
    WHERE waiter.name = watched.name AND waiter.request = watched.request AND waiter.expires_at > {now});
