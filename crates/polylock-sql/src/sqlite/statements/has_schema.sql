-- Whether the tables are there; no row if not.
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '{p}_meta';
