-- Draws a token, and records who holds the lock: (token, clock).
--
-- Inputs:    $1 name, $2 request, $3 and $4 the identity of its session, $5 mode bit, $6 owner, $7 label, $8 TTL in us.
--            After $9 the client has abandoned the claim: no token is drawn.
-- Atomicity: one transaction, durable when it answers if {durable} is on. The server writes of the sequence for 32
--            numbers in advance, and a transaction that has written nothing itself does not wait for the disk. So it
--            writes a message, which nobody reads, and waits for that and for whatever was written before by anybody.
-- Clock:     read once.
--
-- On a connection of its own: what is drawn in a transaction that stays open is not on the disk.
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
