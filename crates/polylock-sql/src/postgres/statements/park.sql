-- See `routines/park.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_park_4($1::bytea, $2::bytea, $3::bigint, $4::bigint, $5::boolean, $6::bigint, $7::bigint);
