-- Records that a request is about to be released, and is granted nothing from then on: a process that has been stopped, such as another server
-- of a lock service, may carry out a claim of it later. The record has an empty notice, and the sweep deletes it. One of a break keeps its notice.
--
-- Inputs:    ?1 name, ?2 request, ?3 the time for which it is refused in us.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
INSERT INTO {p}_broken (name, request, notice, expires_at) VALUES (?1, ?2, '', {until ?3})
ON CONFLICT (name, request) DO UPDATE SET expires_at = max(expires_at, excluded.expires_at);
