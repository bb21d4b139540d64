-- The holders and the waiters of one lock, holders first, each in order: (name, token or NULL, mode, owner, label, age, remaining lease,
-- break notice or NULL).
--
-- Inputs:    ?1 name.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT name, token, mode, {owner}, {label}, {age}, {left}, {notice} FROM (
    SELECT 0 AS waits, token AS seq, name, token, mode, owner, label, since, expires_at, notice FROM {p}_holds
    WHERE name = ?1 AND expires_at > {now}
    UNION ALL
    SELECT 1, seq, name, NULL, mode, owner, label, since, expires_at, NULL FROM {p}_waiters
    WHERE name = ?1 AND expires_at > {now})
ORDER BY waits, seq;
