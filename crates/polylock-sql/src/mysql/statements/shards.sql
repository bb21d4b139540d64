-- Counts the shards that have a row: (number).
--
-- Inputs:    {shards} is the table.
-- Atomicity: read-only.
-- Clock:     none.
SELECT count(*) FROM {p}_{shards};
