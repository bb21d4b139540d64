-- Returns a number that changes when another connection has committed a change.
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
PRAGMA data_version;
