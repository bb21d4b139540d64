-- Leaves the queue if waiting, and clears the name of places that have expired. Answers with the requests that left.
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
DELETE FROM {p}_waiters WHERE name = ?1 AND (request = ?2 OR expires_at <= {now}) RETURNING request;
