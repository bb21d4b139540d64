-- Reads the notice of a broken hold: (notice), or no row.
--
-- Inputs:    $1 name, $2 request.
-- Atomicity: read-only.
-- Clock:     none.
SELECT notice FROM {p}_sessions WHERE name = $1 AND request = $2 AND notice IS NOT NULL;
