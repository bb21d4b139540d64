-- A number that changes when another connection has committed something.
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
PRAGMA data_version;
