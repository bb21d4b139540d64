-- See `routines/sweep.sql`.
CALL {p}_sweep_2($1, $2, $3, $4);
