-- The columns of the tables with names that begin with the prefix: (table, column).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT made.name, info.name FROM sqlite_schema AS made JOIN pragma_table_info(made.name) AS info
WHERE made.type = 'table' AND lower(substr(made.name, 1, length('{p}_'))) = lower('{p}_');
