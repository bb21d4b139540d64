-- The triggers on the tables that others have created: (trigger, table).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name <> '{p}_granted'
AND lower(tbl_name) IN (lower('{p}_meta'), lower('{p}_holds'), lower('{p}_waiters'), lower('{p}_broken'), lower('{p}_runs'));
