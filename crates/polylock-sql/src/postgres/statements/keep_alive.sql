-- See `routines/keep_alive.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_keep_alive_3($1::bytea, $2::boolean);
