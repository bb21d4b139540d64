-- Says that the functions are there. Their names end with the version of their arguments: programs of two versions can
-- work on the same tables.
INSERT INTO {p}_meta (key, value) VALUES ('routines', 1)
ON CONFLICT (key) DO UPDATE SET value = greatest({t}_meta.value, 1);
