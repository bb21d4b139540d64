-- Draws a token for a name: (3, token, 0).
--
-- Inputs:    $1 name.
-- Atomicity: one statement, which is a transaction: durable when it answers, if the server is set so.
-- Clock:     none.
--
-- On a connection of its own: what is drawn in a transaction that stays open is not on the disk.
UPDATE {p}_tokens SET token = last_insert_id(token + 1) WHERE shard = (crc32($1) & 63);
SELECT 3, CAST(last_insert_id() AS SIGNED), 0 FROM DUAL WHERE row_count() = 1;
