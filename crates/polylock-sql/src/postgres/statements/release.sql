-- See `routines/release.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_release_4($1::bytea, $2::bytea, $3::text, $4::bigint, $5::bigint);
