-- See `routines/renew.sql`.
CALL {p}_renew_1($1, $2, $3, $4);
