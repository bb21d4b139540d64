-- Parks a hold: it ends in a certain time, whether its lease ends earlier or later, and is not extended any more. Until then it keeps others
-- out, also if its process ends. Returns (1 if the hold is parked, now or before, or 0; the notice if it was broken).
--
-- Inputs:    ?1 name, ?2 request, ?3 its token, ?4 the time until the end in us.
-- Atomicity: one write transaction.
-- Clock:     read by each statement, after the write lock was taken.
--
-- A parked hold is marked as a broken one, with an empty notice.
BEGIN IMMEDIATE;
UPDATE {p}_holds SET expires_at = {until ?4}, notice = '', process = NULL
WHERE name = ?1 AND request = ?2 AND token = ?3 AND expires_at > {now} AND notice IS NULL;
SELECT notice = '', nullif(notice, '') FROM (
    SELECT notice FROM {p}_holds WHERE name = ?1 AND request = ?2 AND token = ?3 AND expires_at > {now}
    UNION ALL
    SELECT notice FROM {p}_broken WHERE name = ?1 AND request = ?2 AND notice <> '');
COMMIT;
