-- Records that the functions are there. Their names end with the version of what they take and do.
INSERT INTO {p}_meta (key, value) VALUES ('routines', 2)
ON CONFLICT (key) DO UPDATE SET value = greatest({t}_meta.value, 2);
