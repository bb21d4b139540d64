-- See `routines/break.sql`.
CALL {p}_break_2($1, $2, $3, $4);
