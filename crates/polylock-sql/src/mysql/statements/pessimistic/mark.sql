-- Marks the live holds of a name as broken: (NULL, 1 if it was in time, ..., clock). A second break does not replace the notice
-- of the first one.
--
-- Inputs:    $1 name, $2 notice. After $3 the client has abandoned the break, and the statement has no effect.
-- Atomicity: one statement.
-- Clock:     read by each statement.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
UPDATE {p}_sessions SET notice = coalesce(notice, $2), expires_at = coalesce(expires_at, {now} + ttl)
WHERE name = $1 AND {now} <= $3 AND {live};
SELECT NULL, {now} <= $3, NULL, NULL, NULL, NULL, {now}, NULL;
