-- Ends the statement that a connection of ours has running. Nothing happens if it is not in that transaction any more.
--
-- Inputs:    $1 connection, $2 transaction.
-- Atomicity: a signal.
-- Clock:     none.
{begin}
SELECT 0::bigint, {function}(pid)::int::bigint, 0::bigint FROM pg_stat_activity
WHERE pid = $1 AND (extract(epoch FROM xact_start) * 1000000)::bigint = $2;
