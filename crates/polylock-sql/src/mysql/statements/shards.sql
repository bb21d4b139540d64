-- How many shards have a row: (number).
--
-- Inputs:    {shards} is the table.
-- Atomicity: reads only.
-- Clock:     none.
SELECT count(*) FROM {p}_{shards};
