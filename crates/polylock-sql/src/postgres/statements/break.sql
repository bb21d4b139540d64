-- See `routines/break.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_break_3($1::bytea, $2::text, $3::text, $4::boolean, $5::text, $6::bigint);
