-- The trigger of this view records fencing tokens. The view shows the recorded ones.
--
-- Inputs:    none.
-- Atomicity: one statement. It has no effect if the view exists.
-- Clock:     none.
CREATE VIEW IF NOT EXISTS {fence} (resource, token) AS SELECT name, token FROM {fences}
