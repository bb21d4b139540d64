-- Records the fencing token of a resource, and aborts the statement if a greater one was recorded before. From here on the transaction
-- is the file's only writer until it ends. With a snapshot that is older than another connection's last write the statement fails
-- with SQLITE_BUSY_SNAPSHOT.
--
-- Inputs:    the row: the resource, the token.
-- Atomicity: the transaction of the caller; it guards only statements of that transaction.
-- Clock:     none.
CREATE TRIGGER IF NOT EXISTS {raise} INSTEAD OF INSERT ON {fence}
BEGIN
    SELECT RAISE(ABORT, 'a fence needs a resource, a text, and a fencing token, an integer that is not negative')
    WHERE typeof(NEW.resource) <> 'text' OR NEW.resource = '' OR typeof(NEW.token) <> 'integer' OR NEW.token < 0;
    SELECT RAISE(ABORT, 'the fencing token is stale: a greater one was recorded before for the resource')
    FROM {fences} WHERE name = NEW.resource AND token > NEW.token;
    UPDATE {fences} SET token = NEW.token WHERE name = NEW.resource AND token < NEW.token;
    INSERT INTO {fences} (name, token) SELECT NEW.resource, NEW.token
    WHERE NOT EXISTS (SELECT 1 FROM {fences} WHERE name = NEW.resource);
END
