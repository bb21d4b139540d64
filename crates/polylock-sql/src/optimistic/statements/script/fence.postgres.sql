-- Records the fencing token of a resource, and raises 23PLF if a greater one was recorded before. The row of the fence, new or old,
-- stays locked until the transaction ends, so no smaller token is accepted until then, and no greater one. With a snapshot that is
-- older than the row's last change the call fails with 40001 instead.
--
-- Inputs:    the resource, the token.
-- Atomicity: the transaction of the caller; it guards only statements of that transaction.
-- Clock:     none.
CREATE OR REPLACE FUNCTION {fence}(a_resource pg_catalog.text, a_token bigint) RETURNS pg_catalog.void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    v_token bigint;
BEGIN
    IF coalesce(a_resource, '') = '' OR a_token IS NULL OR a_token < 0 THEN
        RAISE EXCEPTION 'a fence needs a resource and a fencing token, which is not negative'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO {fences} AS fence (name, token) VALUES (a_resource, a_token)
    ON CONFLICT (name) DO UPDATE SET token = greatest(fence.token, excluded.token)
    RETURNING fence.token INTO STRICT v_token;
    IF v_token <> a_token THEN
        RAISE EXCEPTION 'fencing token % is stale: token % was recorded before for %', a_token, v_token, a_resource
            USING ERRCODE = '23PLF', HINT = 'The lock was lost: stop this work, and acquire the lock again to redo it.';
    END IF;
END $body$
