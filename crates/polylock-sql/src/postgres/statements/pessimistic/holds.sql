-- Reads the holds, by name, in order of tokens: (name, token, mode, owner, label, age, the longest time that the server may keep
-- the lock of a silent holder, break notice or NULL, identity of the session). Only the server knows the waiters.
--
-- Inputs:    {which} is a condition on the name: equal to $1, or from $1 to before $2.
-- Atomicity: read-only; one statement, so one snapshot of the table. Sessions are looked up one by one.
-- Clock:     read for each row.
{begin}
SELECT encode(name, 'hex'), token, mode, left(owner, 256), left(label, 256), {now} - greatest(since, 0), ttl, left(notice, 1024),
    session_1, session_2
FROM {p}_sessions AS entry WHERE {which} AND {live} ORDER BY entry.name, token;
