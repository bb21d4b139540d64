-- Reads the server's settings, and what was made of the tables: (version number, 1 if it is a replica, encoding of the database, 1 if the
-- tables exist, fsync, full_page_writes, the unlogged tables, 1 if there are tables of polylock.strategy=lease, 1 if there are tables of
-- pessimistic, the clock, 1 if all users may create objects in the schema, the age in seconds of the oldest transaction of the
-- database that keeps deleted rows, the number of replication slots that keep the deleted rows of many transactions, the setting by
-- which sessions are read-only, the number of tokens that a session draws at a time, the tables with row-level security for this
-- user, the triggers and rules on the tables, the time in ms after which idle sessions are closed, 1 if
-- the server sends statements back, which contain secrets). Without the rights of `pg_read_all_stats` the age and the slots cover only sessions of the
-- same user.
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     read once.
{pin}
WITH own AS (
    SELECT oid, oid::regclass::text AS name, relpersistence FROM pg_class
    WHERE oid IN (to_regclass('{p}_meta'), to_regclass('{p}_holds'), to_regclass('{p}_waiters'), to_regclass('{p}_broken'),
        to_regclass('{p}_runs'), to_regclass('{p}_rows'))),
foreign_code AS (
    SELECT format('trigger %I on %s', tgname, own.name) AS name FROM pg_trigger JOIN own ON tgrelid = own.oid
    WHERE NOT tgisinternal AND tgenabled <> 'D'
    UNION ALL
    SELECT format('rule %I on %s', rulename, own.name) FROM pg_rewrite JOIN own ON ev_class = own.oid WHERE ev_enabled <> 'D')
SELECT current_setting('server_version_num')::bigint,
    pg_is_in_recovery()::int::bigint,
    current_setting('server_encoding'),
    (to_regclass('{p}_meta') IS NOT NULL)::int::bigint,
    current_setting('fsync'),
    current_setting('full_page_writes'),
    (SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM own
     WHERE relpersistence = 'u' AND oid IS DISTINCT FROM to_regclass('{p}_rows')),
    (to_regclass('{p}_holds') IS NOT NULL)::int::bigint,
    (to_regclass('{p}_rows') IS NOT NULL)::int::bigint,
    {now},
    (SELECT count(*) FROM pg_namespace, aclexplode(nspacl)
     WHERE nspname = '{s}' AND grantee = 0 AND privilege_type = 'CREATE'),
    (SELECT extract(epoch FROM clock_timestamp() - min(began))::bigint FROM (
        SELECT xact_start AS began FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        UNION ALL
        SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) AS snapshots),
    (SELECT count(*) FROM pg_replication_slots WHERE age(xmin) > 100000),
    'default_transaction_read_only=' || current_setting('default_transaction_read_only'),
    coalesce((SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass('{p}_tokens')), 1),
    (SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM own WHERE row_security_active(oid)),
    (SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM foreign_code),
    (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_session_timeout'),
    (current_setting('client_min_messages') ~ '^(debug|log)' AND (current_setting('log_statement') <> 'none'
        OR current_setting('log_min_duration_statement') <> '-1'))::int::bigint;
