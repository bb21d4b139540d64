-- See `routines/watch.sql`.
CALL {p}_watch_3($1, $2, $3);
