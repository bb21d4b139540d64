-- Lists the locks with broken holds that have not been released: (name).
--
-- Inputs:    none.
-- Atomicity: read-only; one statement, so one snapshot.
-- Clock:     none.
{begin}
SELECT encode(name, 'hex') FROM {p}_holds WHERE notice <> ''
UNION
SELECT encode(name, 'hex') FROM {p}_broken WHERE notice <> '';
