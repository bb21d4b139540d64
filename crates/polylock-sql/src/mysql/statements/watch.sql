-- See `routines/watch.sql`.
CALL {p}_watch_4($1, $2, $3);
