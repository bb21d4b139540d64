-- What there is: (version of the tables, oldest version whose programs may use them, each 0 if it is not there, number of routines of
-- this program that this user sees).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT (SELECT coalesce(max(value), 0) FROM {p}_meta WHERE name = '{row}'),
    (SELECT coalesce(max(value), 0) FROM {p}_meta WHERE name = 'oldest'),
    (SELECT count(*) FROM information_schema.routines
     WHERE routine_schema = database() AND routine_name IN ({routines}));
