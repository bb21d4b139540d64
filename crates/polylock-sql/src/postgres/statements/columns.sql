-- Lists the columns of all tables with the prefix: (table, column).
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     none.
{pin}
SELECT c.relname::text, a.attname::text
FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE n.nspname = '{s}' AND c.relkind = 'r' AND left(c.relname::text, length('{t}_')) = lower('{t}_')
    AND a.attnum > 0 AND NOT a.attisdropped;
