-- What is there: (version of the tables or 0, number of gates, number of routines that this user sees).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT (SELECT coalesce(max(value), 0) FROM {p}_meta WHERE name = 'schema'),
    (SELECT count(*) FROM {p}_gates),
    (SELECT count(*) FROM information_schema.routines
     WHERE routine_schema = database() AND routine_name IN ({routines}));
