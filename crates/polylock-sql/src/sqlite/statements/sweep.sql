-- Deletes the expired notices, and the expired rows from a section of the holds and of the waiters, so that names that no request uses
-- again leave no rows. Returns the ends of the two sections, the last token and the last queue number; NULL at the end of the table.
--
-- Inputs:    ?1 token and ?2 queue number after which the sections begin, ?3 their length.
-- Atomicity: each statement is a transaction of its own; a change between them only leaves more or fewer
--            expired rows.
-- Clock:     read by each statement.
DELETE FROM {p}_holds WHERE expires_at <= {now} AND token IN
    (SELECT token FROM {p}_holds WHERE token > ?1 ORDER BY token LIMIT ?3);
DELETE FROM {p}_waiters WHERE expires_at <= {now} AND seq IN
    (SELECT seq FROM {p}_waiters WHERE seq > ?2 ORDER BY seq LIMIT ?3);
DELETE FROM {p}_broken WHERE expires_at <= {now};
-- One statement, because the driver leaves arguments behind a gap in the numbers unbound from the fourth statement on.
SELECT (SELECT max(token) FROM (SELECT token FROM {p}_holds WHERE token > ?1 ORDER BY token LIMIT ?3)),
       (SELECT max(seq) FROM (SELECT seq FROM {p}_waiters WHERE seq > ?2 ORDER BY seq LIMIT ?3));
