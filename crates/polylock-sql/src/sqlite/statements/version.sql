-- The version of the tables, and the oldest version with programs that may use them, each 0 if it is missing: (version, oldest).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT coalesce(max(value) FILTER (WHERE key = '{row}'), 0), coalesce(max(value) FILTER (WHERE key = 'oldest'), 0)
FROM {p}_meta;
