-- Draws a token for a name, and records the holder: (token, clock).
--
-- Inputs:    $1 name, $2 request, $3 and $4 the identity of its session, $5 mode bit, $6 owner, $7 label, $8 TTL in us. After $9
--            the client has abandoned the claim: no token is drawn.
-- Atomicity: one transaction; durable when it returns, if the server's settings guarantee that.
-- Clock:     read by each statement.
--
-- Runs on a connection of its own: the write of a transaction that stays open is not on the disk.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
START TRANSACTION;
UPDATE {p}_tokens SET token = last_insert_id(token + 1) WHERE shard = (crc32($1) & 63) AND {now} <= $9;
REPLACE INTO {p}_sessions (name, request, session_1, session_2, token, mode, owner, label, since, ttl)
SELECT $1, $2, $3, $4, last_insert_id(), $5, $6, $7, {now}, $8 FROM DUAL WHERE row_count() = 1;
COMMIT;
SELECT (SELECT token FROM {p}_sessions WHERE name = $1 AND request = $2 AND session_1 = $3 AND session_2 = $4), {now};
