-- Returns a row if the tables exist, and no row otherwise.
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '{p}_meta';
