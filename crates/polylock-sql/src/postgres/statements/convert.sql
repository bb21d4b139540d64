-- See `routines/convert.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_convert_3($1::bytea, $2::bytea, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::boolean, $a::bigint);
