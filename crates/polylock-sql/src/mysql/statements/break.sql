-- See `routines/break.sql`.
CALL {p}_break_3($1, $2, $3, $4, $5);
