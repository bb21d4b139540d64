-- See `routines/release.sql`.
CALL {p}_release_3($1, $2, $3);
