-- Records the version, when everything is there; run last. It never goes back.
INSERT INTO {p}_meta (key, value) VALUES ('{row}', {version})
ON CONFLICT (key) DO UPDATE SET value = greatest({t}_meta.value, {version});
