-- Breaks holds of a lock by force: removes them, and keeps the notice of each live one until its lease would have ended. Returns the live
-- holds: (name, token, mode, owner, label, age, remaining lease, notice).
--
-- Inputs:    ?1 name, ?2 notice, ?3 the tokens of the holds as a JSON array; others stay as they are.
-- Atomicity: one write transaction.
-- Clock:     read by each statement, after the write lock was taken.
BEGIN IMMEDIATE;
INSERT INTO {p}_broken (name, request, notice, expires_at)
SELECT name, request, coalesce(nullif(notice, ''), ?2), expires_at FROM {p}_holds
WHERE name = ?1 AND token IN (SELECT value FROM json_each(?3)) AND expires_at > {now}
ON CONFLICT (name, request) DO UPDATE SET notice = excluded.notice, expires_at = max(expires_at, excluded.expires_at);
SELECT name, token, mode, {owner}, {label}, {age}, {left}, substr(coalesce(nullif(notice, ''), ?2), 1, 1024) FROM {p}_holds
WHERE name = ?1 AND token IN (SELECT value FROM json_each(?3)) AND expires_at > {now};
DELETE FROM {p}_holds WHERE name = ?1 AND token IN (SELECT value FROM json_each(?3));
COMMIT;
