-- The version of the tables.
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT value FROM {p}_meta WHERE key = 'schema';
