-- Sends a notification to this process's own channel. Its arrival proves that notifications are delivered.
--
-- Inputs:    $1 channel.
-- Atomicity: one statement.
-- Clock:     none.
{begin}
SELECT pg_notify($1, '0');
