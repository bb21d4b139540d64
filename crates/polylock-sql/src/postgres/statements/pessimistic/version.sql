-- The version of the tables, or 0: (tables, 0).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
{pin}
SELECT coalesce(max(value), 0), 0::bigint FROM {p}_meta WHERE key = 'rows';
