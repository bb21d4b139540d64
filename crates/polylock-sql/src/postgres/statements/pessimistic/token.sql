-- Draws a token: (3, token, 0).
--
-- Inputs:    none.
-- Atomicity: one transaction, durable when it answers if {durable} is on. The number of the transaction is asked for so
--            that its end is written to the disk, and with it whatever was written before of the sequence by anybody.
-- Clock:     none.
--
-- On a connection of its own: what is drawn in a transaction that stays open is not on the disk.
{begin}
SET LOCAL synchronous_commit = {durable};
SELECT 3::bigint, nextval('{p}_tokens'), txid_current();
