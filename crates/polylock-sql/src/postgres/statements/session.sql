-- Which session of the server this is: (its process id).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
{pin}
SELECT pg_backend_pid()::bigint;
