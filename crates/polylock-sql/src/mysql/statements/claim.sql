-- See `routines/claim.sql`.
CALL {p}_claim_4($1, $2, $3, $4, $5, $6, $7, $8, $9, $a, $b);
