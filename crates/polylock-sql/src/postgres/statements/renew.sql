-- See `routines/renew.sql`. Each argument has its type, so that no function but this one fits.
{begin}
SELECT * FROM {p}_renew_2($1::bytea, $2::bytea, $3::bigint, $4::boolean);
