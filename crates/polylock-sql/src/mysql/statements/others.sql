-- Whether there are tables of another strategy, and the clock: (number of tables, time).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     read once.
SELECT count(*), {now} FROM information_schema.tables
WHERE table_schema = database() AND table_name = '{p}_{table}';
