-- Marks live holds of a name as broken: (NULL, 1 if it was in time, ..., clock). A second break does not replace the notice
-- of the first one.
--
-- Inputs:    $1 name, $2 notice, $3 the tokens of the holds, separated by commas. After $4 the client has
--            abandoned the break, and the statement has no effect.
-- Atomicity: one statement.
-- Clock:     read by each statement.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
UPDATE {p}_sessions SET notice = coalesce(notice, $2), expires_at = coalesce(expires_at, {now} + ttl)
WHERE name = $1 AND find_in_set(token, $3) > 0 AND {now} <= $4 AND {live};
SELECT NULL, {now} <= $4, NULL, NULL, NULL, NULL, {now}, NULL;
