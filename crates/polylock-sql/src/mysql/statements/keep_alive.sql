-- See `routines/keep_alive.sql`.
CALL {p}_keep_alive_3($1);
