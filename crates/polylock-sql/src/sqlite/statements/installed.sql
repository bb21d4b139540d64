-- Records the version, after everything else was created; run last.
INSERT INTO {p}_meta (key, value) VALUES ('{row}', {version}) ON CONFLICT (key) DO UPDATE SET value = {version};
