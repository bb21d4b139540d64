-- See `routines/release.sql`.
CALL {p}_release_4($1, $2, $3);
