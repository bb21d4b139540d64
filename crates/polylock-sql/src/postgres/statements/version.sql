-- The versions of the tables and of the functions, or 0: (tables, functions).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
{pin}
SELECT coalesce(max(CASE WHEN key = 'schema' THEN value END), 0),
    coalesce(max(CASE WHEN key = 'routines' THEN value END), 0)
FROM {p}_meta;
