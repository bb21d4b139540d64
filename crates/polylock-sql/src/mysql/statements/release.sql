-- See `routines/release.sql`.
CALL {p}_release_6($1, $2, $3, $4, $5);
