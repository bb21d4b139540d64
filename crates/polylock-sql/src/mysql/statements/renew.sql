-- See `routines/renew.sql`.
CALL {p}_renew_2($1, $2, $3, $4);
