-- The view whose trigger records fencing tokens. It shows the recorded ones.
--
-- Inputs:    none.
-- Atomicity: one statement. It has no effect if the view exists.
-- Clock:     none.
CREATE VIEW IF NOT EXISTS {fence} (resource, token) AS SELECT name, token FROM {fences}
