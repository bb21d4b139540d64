-- What the server is and how it is set: (name, value) of those that it has.
--
-- Inputs:    none.
-- Atomicity: reads only.
-- Clock:     none.
--
-- The session's, because a new connection is asked: what it got is what all of this user get.
SHOW SESSION VARIABLES WHERE variable_name IN ('version', 'read_only', 'super_read_only', 'innodb_read_only',
    'autocommit', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', 'wsrep_on',
    'group_replication_single_primary_mode');
