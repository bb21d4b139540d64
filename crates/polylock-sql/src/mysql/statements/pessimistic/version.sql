-- What is there: (version of the tables or 0, number of shards, 0).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT (SELECT coalesce(max(value), 0) FROM {p}_meta WHERE name = 'rows'), (SELECT count(*) FROM {p}_tokens), 0;
