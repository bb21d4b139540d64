-- See `routines/break.sql`. Each argument has its type, so that no function but this one fits.
{begin}
SELECT * FROM {p}_break_2($1::bytea, $2::text, $3::boolean, $4::text, $5::bigint);
