-- See `routines/break.sql`. The tokens are a text, in the character set of the database.
CALL {p}_break_3($1, CONVERT($2 USING utf8mb4), $3, $4, $5);
