-- Lists the columns of all tables with the prefix: (table, column).
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     none.
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = database() AND left(table_name, length('{p}_')) = '{p}_';
