-- Makes all later tokens greater than a number, if few tokens are between: draws them. Returns (a number that no earlier token of the
-- lock exceeds, a number that all later ones exceed).
--
-- Inputs:    $2 the number.
-- Atomicity: one transaction. Other sessions may draw tokens in between. If the number itself is not drawn here, another session has
--            drawn it.
-- Clock:     none.
--
-- It is durable when it returns if {sync} is on. The server logs a sequence 32 numbers in advance, and a transaction without writes of
-- its own does not wait for the disk. So it writes a message without a reader, and waits for that and for all earlier writes of any
-- session.
{begin}
SET LOCAL synchronous_commit = {sync};
SELECT CASE WHEN drawn.has_number THEN $2::bigint - 1 ELSE greatest(last_value, drawn.last) END,
    CASE WHEN pg_logical_emit_message(true, 'polylock', '') IS NOT NULL THEN greatest(last_value, drawn.last) END
FROM pg_sequence_last_value('{p}_tokens'::regclass) AS last_value CROSS JOIN LATERAL (
    SELECT max(token) AS last, coalesce(bool_or(token = $2::bigint), false) AS has_number FROM (
        SELECT nextval('{p}_tokens') AS token
        FROM generate_series(last_value + 1, CASE WHEN $2::bigint - last_value <= 1024 THEN $2::bigint ELSE last_value END)
    ) AS tokens) AS drawn;
