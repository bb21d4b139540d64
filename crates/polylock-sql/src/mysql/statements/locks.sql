-- Lists holders and waiters by name, holders first, each in order: (name, token or NULL, mode, owner, label, age, rest of the
-- lease, break notice or NULL). Other users may be able to write to the tables: no value makes the statement fail.
--
-- Inputs:    {which} is a condition on the name: equal to $1, or from $1 to before $2; {holds} and {waiters} limit the entries of
--            each table to $3, the first ones by name.
-- Atomicity: read-only; one statement, so one snapshot.
-- Clock:     read once.
SELECT name, token, mode, owner, label, {now} - greatest(since, 0), expires_at - {now}, notice FROM (
    (SELECT 0 AS waits, token AS seq, name, token, mode, owner, label, since, expires_at, notice FROM {p}_holds
    WHERE {which} AND expires_at > {now} {holds})
    UNION ALL
    (SELECT 1, seq, name, NULL, mode, owner, label, since, expires_at, NULL FROM {p}_waiters
    WHERE {which} AND expires_at > {now} {waiters})) AS entries
ORDER BY name, waits, seq;
