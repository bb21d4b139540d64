-- Draws a token: (3, token, 0).
--
-- Inputs:    none.
-- Atomicity: one transaction, durable when it answers if {durable} is on. The server writes of the sequence for 32
--            numbers in advance, and a transaction that has written nothing itself does not wait for the disk. So it
--            writes a message, which nobody reads, and waits for that and for whatever was written before by anybody.
-- Clock:     none.
--
-- On a connection of its own: what is drawn in a transaction that stays open is not on the disk.
{begin}
SET LOCAL synchronous_commit = {durable};
SELECT 3::bigint, nextval('{p}_tokens'), 0::bigint FROM pg_logical_emit_message(true, 'polylock', '');
