-- See `routines/renew.sql`.
{begin}
SELECT {p}_renew_1($1, $2, $3, $4);
