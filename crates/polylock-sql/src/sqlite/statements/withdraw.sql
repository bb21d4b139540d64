-- Removes the request from the queue, if it is waiting.
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     none.
DELETE FROM {p}_waiters WHERE name = ?1 AND request = ?2;
