-- Counts the tables of another strategy, and reads the clock: (number of tables, time).
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     read once.
SELECT count(*), {now} FROM information_schema.tables
WHERE table_schema = database() AND table_name = '{p}_{table}';
