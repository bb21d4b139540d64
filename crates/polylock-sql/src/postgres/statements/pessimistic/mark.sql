-- Marks live holds of a name as broken: (NULL, 1 if it was in time, ..., clock). A second break does not replace the notice
-- of the first one.
--
-- Inputs:    $1 name, $2 notice, $3 the tokens of the holds, separated by commas. After $4 the client has
--            abandoned the break, and the statement has no effect.
-- Atomicity: one statement.
-- Clock:     read for each row.
{begin}
UPDATE {p}_sessions AS entry SET notice = coalesce(notice, $2), expires_at = coalesce(expires_at, {now} + ttl)
WHERE name = $1 AND token = ANY (string_to_array($3, ',')::bigint[]) AND {now} <= $4 AND {live};
SELECT NULL::bigint, ({now} <= $4)::int::bigint, NULL::bigint, NULL::text, NULL::text, NULL::bigint, {now}, NULL::text;
