-- Releases if held, withdraws if waiting, and clears the name of what has expired. Answers with the requests that
-- left.
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: two statements, each a write transaction of its own: a request holds or waits, never both, so there is
--            nothing between the two that could be seen half done.
-- Clock:     read by each statement, after the write lock was taken.
DELETE FROM {p}_holds WHERE name = ?1 AND (request = ?2 OR expires_at <= {now}) RETURNING request;
DELETE FROM {p}_waiters WHERE name = ?1 AND (request = ?2 OR expires_at <= {now}) RETURNING request;
