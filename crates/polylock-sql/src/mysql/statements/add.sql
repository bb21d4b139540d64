-- Adds a column or a key that may be there: MariaDB alone has words for that.
--
-- Inputs:    {look} is where the name would be, and {column} that of the name; {statement} adds it, as the text of a literal.
-- Atomicity: none. Of two programs that do it at once one gets an error for a name that is there.
-- Clock:     none.
SET @polylock = if((SELECT count(*) FROM information_schema.{look}
    WHERE table_schema = database() AND table_name = '{p}_{table}' AND {column} = '{name}') > 0, 'DO 0', '{statement}');
PREPARE polylock FROM @polylock;
EXECUTE polylock;
DEALLOCATE PREPARE polylock;
