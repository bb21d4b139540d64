-- Makes all later tokens greater than a number. Returns the last token before: (token).
--
-- Inputs:    ?1 the number.
-- Atomicity: one write transaction, in which no token is issued.
-- Clock:     none.
BEGIN IMMEDIATE;
SELECT seq FROM sqlite_sequence WHERE name = '{p}_holds';
UPDATE sqlite_sequence SET seq = ?1 WHERE name = '{p}_holds' AND seq < ?1;
COMMIT;
