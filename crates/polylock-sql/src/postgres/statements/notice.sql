-- Reads the notice of a hold that is marked as broken or was removed: (notice), or no row.
--
-- Inputs:    $1 name, $2 request.
-- Atomicity: read-only; one statement, so one snapshot.
-- Clock:     none.
{begin}
SELECT notice FROM {p}_holds
WHERE name = $1::bytea AND slot IN ('', $2::bytea) AND request = $2::bytea AND notice IS NOT NULL
UNION ALL
SELECT notice FROM {p}_broken WHERE name = $1::bytea AND request = $2::bytea;
