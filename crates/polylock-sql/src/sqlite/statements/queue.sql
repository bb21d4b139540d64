-- Joins the queue at its end, unless the request holds the lock, is refused (`refuse.sql`) or has a live queue entry; refreshes the entry when less than half of its
-- time is left, so that a repeated claim costs no write; deletes the expired rows of the name. Returns the rows of `look.sql`, which
-- replaces {look}.
--
-- Inputs:    ?1 name, ?2 request, ?3 mode bit, ?4 conflict mask, ?5 true to count, ?6 owner, ?7 label,
--            ?8 the queue entry's TTL in us, ?9 channel and ?10 ticket for the wake-up, or NULL, ?11 process or NULL.
-- Atomicity: one write transaction, so that no release comes between joining and reading.
-- Clock:     read by each statement, after the write lock was taken.
BEGIN IMMEDIATE;
DELETE FROM {p}_holds WHERE name = ?1 AND expires_at <= {now};
DELETE FROM {p}_waiters WHERE name = ?1 AND expires_at <= {now};
INSERT INTO {p}_waiters (name, request, mode, owner, label, since, expires_at, channel, ticket, process)
SELECT ?1, ?2, ?3, ?6, ?7, {now}, {until ?8}, ?9, ?10, ?11
WHERE NOT EXISTS (SELECT 1 FROM {p}_holds WHERE name = ?1 AND request = ?2)
AND NOT EXISTS (SELECT 1 FROM {p}_broken WHERE name = ?1 AND request = ?2 AND expires_at > {now})
ON CONFLICT (name, request) DO UPDATE SET expires_at = excluded.expires_at
WHERE expires_at - {now} < ?8 / 2;
{look}
COMMIT;
