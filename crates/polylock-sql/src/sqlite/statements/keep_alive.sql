-- Extends live holds that are not marked as broken, and live queue entries: to a maximum, which never shortens a lease. Returns a text for
-- each request, in their order, separated by commas: H, remaining lease, token and modes, separated by spaces, for a hold; Q queued, B broken,
-- G gone or parked.
--
-- Inputs:    ?1 a JSON array with a row [name, request, TTL in us, TTL of the queue entry in us, 1 if the hold may outlive its process or 0]
--            for each; bytes as hexadecimal digits.
-- Atomicity: one write transaction.
-- Clock:     read by each statement, after the write lock was taken.
BEGIN IMMEDIATE;
UPDATE {p}_holds SET expires_at = max(expires_at, {until ttl}), process = CASE WHEN outlives THEN NULL ELSE process END FROM (
    SELECT unhex(value ->> 0) AS b_name, unhex(value ->> 1) AS b_request, value ->> 2 AS ttl, value ->> 4 AS outlives FROM json_each(?1))
WHERE name = b_name AND slot IN (x'', b_request) AND request = b_request AND expires_at > {now} AND notice IS NULL;
UPDATE {p}_waiters SET expires_at = max(expires_at, {until ttl}) FROM (
    SELECT unhex(value ->> 0) AS b_name, unhex(value ->> 1) AS b_request, value ->> 3 AS ttl FROM json_each(?1))
WHERE name = b_name AND request = b_request AND expires_at > {now};
SELECT group_concat(CASE
    WHEN held IS NOT NULL THEN held
    WHEN EXISTS (SELECT 1 FROM {p}_waiters WHERE name = b_name AND request = b_request AND expires_at > {now}) THEN 'Q'
    WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = b_name AND slot IN (x'', b_request) AND request = b_request
        AND notice <> '') OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = b_name AND request = b_request AND notice <> '') THEN 'B'
    ELSE 'G' END, ',' ORDER BY ord)
FROM (SELECT *, (
    SELECT concat_ws(' ', 'H', {left}, token, mode) FROM {p}_holds
    WHERE name = b_name AND slot IN (x'', b_request) AND request = b_request AND expires_at > {now} AND notice IS NULL) AS held
    FROM (SELECT key AS ord, unhex(value ->> 0) AS b_name, unhex(value ->> 1) AS b_request FROM json_each(?1)));
COMMIT;
