-- Notifies a channel of this program's own: whether that is heard tells whether others are.
--
-- Inputs:    $1 channel.
-- Atomicity: one statement.
-- Clock:     none.
{begin}
SELECT pg_notify($1, '0');
