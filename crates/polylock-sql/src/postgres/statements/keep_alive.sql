-- See `routines/keep_alive.sql`. Each argument has its type, so that no function but this one fits.
{begin}
SELECT * FROM {p}_keep_alive_2($1::bytea, $2::boolean);
