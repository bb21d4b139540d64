-- Releases if held, withdraws if waiting. Answers with the tickets of those who waited for it on a_channel; those on
-- other channels are notified.
--
-- Inputs:    none but names.
-- Atomicity: one transaction of its own, behind the advisory lock on the name: whoever has joined the queue behind it is
--            seen.
-- Clock:     none.
--
-- Not waited for until it is on the disk: if a crash of the server undoes it, the hold that comes back runs out by itself.
-- Nobody can have been granted the lock meanwhile, because that grant is on the disk with all that came before it.
CREATE OR REPLACE FUNCTION {p}_release_1(a_name bytea, a_request bytea, a_channel text)
RETURNS SETOF bigint
LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {p}_holds WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;
    IF NOT FOUND THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
    END IF;
    -- Every transaction that notifies takes a lock of the whole server, so only where somebody is to be woken.
    PERFORM pg_notify(channel, ticket::text) FROM {p}_waiters
    WHERE name = a_name AND behind = a_request AND channel <> a_channel;
    RETURN QUERY SELECT ticket FROM {p}_waiters
    WHERE name = a_name AND behind = a_request AND channel = a_channel;
END $body$;
