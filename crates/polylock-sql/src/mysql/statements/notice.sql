-- Reads the notice of a hold that is marked as broken or was removed: (notice), or no row.
--
-- Inputs:    $1 name, $2 request, $3 empty for an exclusive hold, else the request.
-- Atomicity: read-only; one statement, so one snapshot.
-- Clock:     none.
SELECT notice FROM {p}_holds WHERE name = $1 AND slot = $3 AND request = $2 AND notice IS NOT NULL
UNION ALL
SELECT notice FROM {p}_broken WHERE name = $1 AND request = $2;
