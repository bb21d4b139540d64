-- Records the version, when everything is there; run last. It never goes back.
INSERT INTO {p}_meta (name, value) VALUES ('{row}', {version}) ON DUPLICATE KEY UPDATE value = greatest(value, {version});
