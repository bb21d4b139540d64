-- See `routines/release.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_release_2($1::bytea, $2::bytea, $3::text);
