-- See `routines/sweep.sql`.
CALL {p}_sweep_1($1, $2, $3);
