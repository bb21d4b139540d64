-- Records the version once all tables and routines exist; run last. The version never decreases.
INSERT INTO {p}_meta (key, value) VALUES ('{row}', {version})
ON CONFLICT (key) DO UPDATE SET value = greatest({t}_meta.value, {version});
