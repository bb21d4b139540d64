-- Ends a session of ours, or the statement that it has running: a row, or error 1094 if there is no such session.
--
-- Inputs:    {session} the lock that the session has on its identity; {what} is `CONNECTION` or `QUERY`.
-- Atomicity: one statement looks up the session by its identity and ends it. A session that ends by itself between these two
--            has given its number to nobody: the server counts connections up, and restarts neither.
-- Clock:     none.
KILL {what} is_used_lock({session});
SELECT 0, 0, 0;
