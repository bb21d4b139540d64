-- Reads the versions: (version of the tables, oldest version with access to them, number of this program's functions that
-- exist). A missing version is 0.
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     none.
{pin}
SELECT coalesce(max(CASE WHEN key = '{row}' THEN value END), 0),
    coalesce(max(CASE WHEN key = 'oldest' THEN value END), 0),
    (SELECT count(DISTINCT proname) FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace
     WHERE nspname = '{s}' AND proname = ANY (ARRAY[{routines}]::name[]))
FROM {p}_meta;
