-- Makes all later tokens greater than a number: sets the sequence. Returns (the last token before, a number that all later tokens exceed).
--
-- Inputs:    $2 the number; {table} is the table into which every session that draws a token inserts a row in the same statement.
-- Atomicity: one transaction, which locks the table. The statement of another session that draws a token locks the table first, and
--            keeps it until its commit, so no token is drawn in between: `setval` alone could set the sequence back to a smaller number
--            than one that another session has drawn meanwhile.
-- Clock:     read once.
--
-- It continues up to a minute after the clock, so that it is not needed for each grant beside a store whose tokens are a clock.
{begin}
SET LOCAL synchronous_commit = {sync};
LOCK TABLE {p}_{table} IN SHARE ROW EXCLUSIVE MODE;
SELECT last_value, setval('{p}_tokens', greatest(last_value, $2::bigint, least($2::bigint, {now}) + 60000000))
FROM pg_sequence_last_value('{p}_tokens'::regclass) AS last_value;
