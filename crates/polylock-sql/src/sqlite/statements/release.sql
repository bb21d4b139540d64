-- Releases if held, and clears the name of holders that have expired. Answers with the requests that left. Who is not
-- among them may wait still: `withdraw.sql`. One who held has no place in the queue (by the trigger of `schema.sql`).
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
DELETE FROM {p}_holds WHERE name = ?1 AND (request = ?2 OR expires_at <= {now}) RETURNING request;
