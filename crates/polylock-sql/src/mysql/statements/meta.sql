-- The versions of the programs that may use the tables, of either strategy; run first.
--
-- Inputs:    none.
-- Atomicity: none: each statement is its own transaction, and may be repeated.
-- Clock:     none.
--
-- `{row}` is the version, `oldest` the oldest version with access to the tables. The first program inserts `oldest` before it
-- creates the other tables. The update fails if programs may use the tables with which this version can't share locks.
CREATE TABLE IF NOT EXISTS {p}_meta (name VARBINARY(64) NOT NULL PRIMARY KEY, value BIGINT NOT NULL) ENGINE=InnoDB;
INSERT IGNORE INTO {p}_meta (name, value) VALUES ('oldest', {oldest});
UPDATE {p}_meta SET value = 'stop the programs of versions before {oldest}, and set oldest to {oldest}' WHERE name = 'oldest' AND value < {oldest};
