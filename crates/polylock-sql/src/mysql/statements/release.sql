-- See `routines/release.sql`.
CALL {p}_release_1($1, $2, $3);
