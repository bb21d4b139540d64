-- The version of the tables, the oldest version whose programs may use them, each 0 if it is not there, and how many functions
-- of this program are there: (version, oldest, functions).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
{pin}
SELECT coalesce(max(CASE WHEN key = '{row}' THEN value END), 0),
    coalesce(max(CASE WHEN key = 'oldest' THEN value END), 0),
    (SELECT count(DISTINCT proname) FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace
     WHERE nspname = '{s}' AND proname = ANY (ARRAY[{routines}]::name[]))
FROM {p}_meta;
