-- See `routines/keep_alive.sql`.
CALL {p}_keep_alive_4($1);
