-- Reads the versions: (version of the tables, oldest version with access to them, each 0 if it is missing, number of this
-- program's routines that this user sees).
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     none.
SELECT (SELECT coalesce(max(value), 0) FROM {p}_meta WHERE name = '{row}'),
    (SELECT coalesce(max(value), 0) FROM {p}_meta WHERE name = 'oldest'),
    (SELECT count(*) FROM information_schema.routines
     WHERE routine_schema = database() AND routine_name IN ({routines}));
