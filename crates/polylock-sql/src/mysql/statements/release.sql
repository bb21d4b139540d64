-- See `routines/release.sql`.
CALL {p}_release_2($1, $2, $3);
