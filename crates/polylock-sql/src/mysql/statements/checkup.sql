-- Reads the server's settings: (name, value) of those that exist.
--
-- Inputs:    none.
-- Atomicity: read-only.
-- Clock:     none.
--
-- Reads session variables on a new connection: they are the initial values of every session of this user.
SHOW SESSION VARIABLES WHERE variable_name IN ('version', 'read_only', 'super_read_only', 'innodb_read_only',
    'autocommit', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', 'wsrep_on',
    'group_replication_single_primary_mode', 'completion_type', 'tx_read_only', 'transaction_read_only', 'sql_select_limit',
    'sql_big_selects', 'max_join_size', 'wait_timeout');
