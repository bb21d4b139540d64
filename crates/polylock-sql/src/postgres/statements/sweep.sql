-- Clears a stretch of a table of what has expired, so that names nobody asks for again leave nothing behind. Answers with
-- the last name looked at, or no row at the end of the table.
--
-- Inputs:    $1 name to go on from, $2 length of the stretch; {table} is `holds`, `waiters` or `broken`.
-- Atomicity: one statement. A hold that is extended meanwhile is looked at again and left alone.
-- Clock:     read for each row.
{begin}
SET LOCAL synchronous_commit = off;
WITH stretch AS (
    SELECT name AS last FROM (SELECT name FROM {p}_{table} WHERE name > $1 ORDER BY name LIMIT $2) AS names
    ORDER BY name DESC LIMIT 1
), gone AS (
    DELETE FROM {p}_{table} USING stretch WHERE name > $1 AND name <= last AND expires_at <= {now})
SELECT encode(last, 'hex') FROM stretch;
