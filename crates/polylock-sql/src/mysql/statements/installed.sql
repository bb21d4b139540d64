-- Records the version once all tables and routines exist; run last. The version never decreases.
INSERT INTO {p}_meta (name, value) VALUES ('{row}', {version}) ON DUPLICATE KEY UPDATE value = greatest(value, {version});
