-- Deletes the notice that a break by force has left for a hold, and returns it: (notice), or no row.
--
-- Inputs:    ?1 name, ?2 request.
-- Atomicity: one statement, so one write transaction.
-- Clock:     none.
DELETE FROM {p}_broken WHERE name = ?1 AND request = ?2 AND notice <> '' RETURNING notice;
