-- See `routines/break.sql`.
{begin}
SELECT * FROM {p}_break_1($1);
