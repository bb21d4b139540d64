-- Reads the record of a job: (clock, token, revision, contents), of which all but the clock are NULL if there is none.
--
-- Inputs:    $1 name.
-- Atomicity: one statement.
-- Clock:     read once.
{begin}
SELECT clock.now, entry.token, entry.revision, entry.contents FROM (SELECT {now} AS now) AS clock
LEFT JOIN {p}_runs AS entry ON entry.name = $1 AND entry.expires_at > clock.now;
