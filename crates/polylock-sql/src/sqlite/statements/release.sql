-- Releases if held. One row changes, or none. Who did not hold may wait still: `withdraw.sql`. One who held has no
-- place in the queue (by the trigger of `schema.sql`).
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     none.
DELETE FROM {p}_holds WHERE name = ?1 AND request = ?2;
