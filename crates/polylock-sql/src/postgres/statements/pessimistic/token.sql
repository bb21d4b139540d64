-- Draws a token, and records the holder: (token, clock).
--
-- Inputs:    $1 name, $2 request, $3 and $4 the identity of its session, $5 mode bit, $6 owner, $7 label, $8 TTL in us. After $9
--            the client has abandoned the claim: no token is drawn.
-- Atomicity: one transaction, durable when it returns if {durable} is on. The server logs a sequence 32 numbers in advance, and a
--            transaction without writes of its own does not wait for the disk. So it writes a message without a reader, and waits
--            for that and for all earlier writes of any session.
-- Clock:     read once.
--
-- Runs on a connection of its own: the write of a transaction that stays open is not on the disk.
{begin}
SET LOCAL synchronous_commit = {durable};
WITH drawn AS (
    INSERT INTO {p}_sessions AS entry (name, request, session_1, session_2, token, mode, owner, label, since, ttl)
    SELECT $1, $2, $3, $4, nextval('{p}_tokens'), $5, $6, $7, {now}, $8 FROM pg_logical_emit_message(true, 'polylock', '')
    WHERE {now} <= $9
    ON CONFLICT (name, request) DO UPDATE SET session_1 = excluded.session_1, session_2 = excluded.session_2,
        token = excluded.token, since = excluded.since, notice = NULL, expires_at = NULL
    RETURNING entry.token)
SELECT (SELECT token FROM drawn), {now};
