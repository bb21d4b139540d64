-- Ends a session of this store, or its current statement: returns a row, or fails with error 1094 if there is no such session.
--
-- Inputs:    {session} the named lock of the session on its identity; {what} is `CONNECTION` or `QUERY`.
-- Atomicity: one statement looks up the session by its identity and ends it. If the session ends by itself between these two
--            steps, no other session has its number: the server counts connections up, and does not restart in between.
-- Clock:     none.
KILL {what} is_used_lock({session});
SELECT 0, 0, 0;
