-- See `routines/convert.sql`.
CALL {p}_convert_4($1, $2, $3, $4, $5, $6, $7, $8, $9);
