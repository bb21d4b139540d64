-- Lists what others have made of a table: (text). No row if the table does not exist.
--
-- Inputs:    {table}: the table.
-- Atomicity: read-only.
-- Clock:     none.
--
-- A user without the right TRIGGER sees no triggers.
SELECT concat('the engine ', coalesce(engine, table_type), ' of {p}_{table}') FROM information_schema.tables
WHERE table_schema = database() AND table_name = '{p}_{table}' AND coalesce(engine, '') <> 'InnoDB'
UNION ALL
SELECT concat('the trigger ', trigger_name, ' on {p}_{table}') FROM information_schema.triggers
WHERE event_object_schema = database() AND event_object_table = '{p}_{table}'
