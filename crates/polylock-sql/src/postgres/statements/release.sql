-- See `routines/release.sql`.
{begin}
SELECT * FROM {p}_release_1($1, $2, $3);
