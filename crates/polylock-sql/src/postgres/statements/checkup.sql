-- What the server is and how it is set: (version number, 1 if it is a replica, encoding of the database, 1 if the tables
-- are there, fsync, full_page_writes, `u` if the tables are not logged).
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
SELECT current_setting('server_version_num')::bigint,
    pg_is_in_recovery()::int::bigint,
    current_setting('server_encoding'),
    (to_regclass('{p}_meta') IS NOT NULL)::int::bigint,
    current_setting('fsync'),
    current_setting('full_page_writes'),
    coalesce((SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass('{p}_holds')), 'p');
