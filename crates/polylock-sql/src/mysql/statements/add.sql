-- Adds a column or a key unless it exists, because only MariaDB has a syntax for that.
--
-- Inputs:    {look} is the view that lists the names, and {column} its column with the name; {statement} adds it, as the text of
--            a literal.
-- Atomicity: none. If two programs do it at the same time, one of them gets an error for a name that exists.
-- Clock:     none.
SET @polylock = if((SELECT count(*) FROM information_schema.{look}
    WHERE table_schema = database() AND table_name = '{p}_{table}' AND {column} = '{name}') > 0, 'DO 0', '{statement}');
PREPARE polylock FROM @polylock;
EXECUTE polylock;
DEALLOCATE PREPARE polylock;
