-- See `routines/park.sql`.
CALL {p}_park_5($1, $2, $3, $4, $5, $6, $7);
