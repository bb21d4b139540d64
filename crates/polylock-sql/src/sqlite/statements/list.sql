-- Like `inspect.sql`, for every lock with a name in a range, by name.
--
-- Inputs:    ?1 first name, ?2 end of the range (not in it), ?3 the number of entries of each table, the first ones by name.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT name, token, mode, {owner}, {label}, {age}, {left}, {notice} FROM (
    SELECT * FROM (
        SELECT 0 AS waits, token AS seq, name, token, mode, owner, label, since, expires_at, notice FROM {p}_holds
        WHERE name >= ?1 AND name < ?2 AND expires_at > {now} ORDER BY name, slot LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT 1, seq, name, NULL, mode, owner, label, since, expires_at, NULL FROM {p}_waiters
        WHERE name >= ?1 AND name < ?2 AND expires_at > {now} ORDER BY name, seq LIMIT ?3))
ORDER BY name, waits, seq;
