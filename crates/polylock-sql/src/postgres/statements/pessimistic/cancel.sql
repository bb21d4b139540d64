-- Signals a session of this store: cancels its statement or ends the session. No effect if it is no longer in that transaction.
--
-- Inputs:    $1 connection, $2 transaction; {function} `pg_cancel_backend` or `pg_terminate_backend`.
-- Atomicity: a signal.
-- Clock:     none.
{begin}
SELECT 0::bigint, {function}(pid)::int::bigint, 0::bigint FROM pg_stat_activity
WHERE pid = $1 AND (extract(epoch FROM xact_start) * 1000000)::bigint = $2;
