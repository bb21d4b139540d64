-- Records the fencing token of a resource, and signals 23PLF if a greater one was recorded before. The row of the fence, new or old,
-- stays locked until the transaction ends, so no smaller token is accepted until then, and no greater one. The locking read returns
-- the row's last version, and not that of an older snapshot. The resource is compared byte by byte, in UTF-8.
--
-- Inputs:    the resource, the token.
-- Atomicity: the transaction of the caller; it guards only statements of that transaction.
-- Clock:     none.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ {fence}(
    a_resource VARCHAR(255) CHARACTER SET utf8mb4, a_token BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_name VARBINARY(255) DEFAULT CAST(a_resource AS BINARY);
    DECLARE v_token BIGINT;
    DECLARE v_text VARCHAR(128) CHARACTER SET utf8mb4;
    IF v_name IS NULL OR length(v_name) = 0 OR a_token IS NULL OR a_token < 0 THEN
        SIGNAL SQLSTATE '22023'
        SET MESSAGE_TEXT = 'a fence needs a resource and a fencing token, which is not negative';
    END IF;
    INSERT INTO {fences} (name, token) VALUES (v_name, a_token) ON DUPLICATE KEY UPDATE token = greatest(token, a_token);
    SELECT token INTO v_token FROM {fences} WHERE name = v_name FOR UPDATE;
    IF v_token IS NULL OR v_token <> a_token THEN
        SET v_text = left(concat('fencing token ', a_token, ' is stale: token ', coalesce(v_token, 'NULL'),
            ' was recorded before for ', a_resource), 128);
        SIGNAL SQLSTATE '23PLF' SET MESSAGE_TEXT = v_text;
    END IF;
END
