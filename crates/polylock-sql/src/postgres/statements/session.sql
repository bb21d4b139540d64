-- Reads the process id of the server's session: (process id).
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     none.
{pin}
SELECT pg_backend_pid()::bigint;
