-- Records that everything is there; run last.
INSERT IGNORE INTO {p}_meta (name, value) VALUES ('schema', 2);
