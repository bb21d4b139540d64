-- See `routines/break.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_break_2($1::bytea, $2::text, $3::boolean, $4::text, $5::bigint);
