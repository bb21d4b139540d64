-- Whether there are tables of another strategy: (number of them).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT count(*) FROM information_schema.tables
WHERE table_schema = database() AND table_name = '{p}_{table}';
