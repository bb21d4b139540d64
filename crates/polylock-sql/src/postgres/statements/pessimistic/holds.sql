-- Who holds, by name, in order of tokens: (name, token, mode, owner, label, age, the longest that the server may keep the lock
-- for a holder that is silent, break notice or NULL, identity of the session). Waiters are known to the server alone.
--
-- Inputs:    {which} is a condition on the name: equal to $1, or from $1 to before $2.
-- Atomicity: reads only; one statement, so one snapshot of the table. Sessions are looked up one by one.
-- Clock:     read for each row.
{begin}
SELECT encode(name, 'hex'), token, mode, left(owner, 256), left(label, 256), {now} - greatest(since, 0), ttl, left(notice, 1024),
    session_1, session_2
FROM {p}_sessions AS entry WHERE {which} AND {live} ORDER BY entry.name, token;
