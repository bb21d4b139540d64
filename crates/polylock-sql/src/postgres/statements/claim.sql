-- See `routines/claim.sql`. Each argument has a type, so that no other function matches.
{begin}
SELECT * FROM {p}_claim_4($1::bytea, $2::bytea, $3::bigint, $4::bigint, $5::bytea, $6::text, $7::text, $8::bigint, $9::bigint,
    $a::text, $b::bigint, $c::boolean, $d::boolean, $e::bigint);
