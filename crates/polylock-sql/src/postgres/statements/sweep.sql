-- Deletes the expired rows of a section of a table, so that names that are never claimed again leave no rows. Returns the last
-- name of the section, or no row at the end of the table.
--
-- Inputs:    $1 name to continue from, $2 length of the section; {table} is `holds`, `waiters` or `broken`.
-- Atomicity: one statement. A hold that is extended in the meantime is checked again and kept.
-- Clock:     read for each row.
{begin}
SET LOCAL synchronous_commit = off;
WITH stretch AS (
    SELECT name AS last FROM (SELECT name FROM {p}_{table} WHERE name > $1 ORDER BY name LIMIT $2) AS names
    ORDER BY name DESC LIMIT 1
), gone AS (
    DELETE FROM {p}_{table} USING stretch WHERE name > $1 AND name <= last AND expires_at <= {now})
SELECT encode(last, 'hex') FROM stretch;
