-- Reads the notice of a broken hold: (notice), or no row.
--
-- Inputs:    $1 name, $2 request.
-- Atomicity: reads only.
-- Clock:     none.
{begin}
SELECT left(notice, 1024) FROM {p}_sessions WHERE name = $1 AND request = $2 AND notice IS NOT NULL;
