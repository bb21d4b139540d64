-- The requests that hold or wait for any of some locks.
--
-- Inputs:    ?1 names, a JSON array of hexadecimal texts: one statement serves any number of them.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT entry.request FROM json_each(?1) AS wanted
CROSS JOIN {p}_holds AS entry ON entry.name = unhex(wanted.value) WHERE entry.expires_at > {now}
UNION ALL
SELECT entry.request FROM json_each(?1) AS wanted
CROSS JOIN {p}_waiters AS entry ON entry.name = unhex(wanted.value) WHERE entry.expires_at > {now};
