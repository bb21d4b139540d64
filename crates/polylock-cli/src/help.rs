//! The long texts of `--help` and of the manual.

pub(crate) const EVERYWHERE: &str = "\
CONFIG FILE
  A TOML file with `store` and its settings; each [profiles.NAME]
  changes some of them:

    store = \"sqlite:///var/lib/locks.db\"
    ttl = \"30s\"
    [profiles.nightly]
    ttl = \"5m\"

  They count only for the store that the file names, not for one given
  with -S or $POLYLOCK_STORE.

DURATIONS
  A bare number is seconds, fractions allowed (2.5); else with units
  (1m30s, 250ms).

EXAMPLES
  polylock run backup rsync -a /data host:/backup
  polylock run -n --skip-ok nightly ./report.sh
  polylock status backup";

pub(crate) const RUN: &str = "\
EXIT CODE
  the command's own, or 128 + the signal that ended it; and
  0    with --skip-ok: not acquired, the command was not run
  75   (-E) held elsewhere, or waited in vain; the command was not run
  79   (--lost-exit-code) the lock was lost and the command was stopped
  64   wrong usage
  69   store unreachable
  70   internal error
  73   the status file can't be written
  77   access denied
  78   bad or unsupported setting or URL
  124  the command was stopped because of --max-hold
  126  the command can't be run
  127  there is no such command
  130, 143, …  interrupted while waiting; its place in the queue was given up

  A command may itself exit with 75, 79 or 124: the verdict in the status
  file tells them apart.

WHEN THE LOCK IS LOST
  The lock is renewed every third of its TTL. If no renewal is
  acknowledged, the command gets --signal one --grace before another
  process can acquire the lock, and SIGKILL before it can. (A lock
  that was handed over begins with at most five seconds: then --grace
  is half of them, until the first renewal.) If the lock is broken or
  gone, the command gets the signal at once and SIGKILL one grace
  later; a broken lock is released when the command has ended. A
  helper process (`polylock __warden`) kills the command also if
  polylock itself is killed or stopped.

  Everything that the command has started is stopped with it, also
  processes that have left its process group or its session, and those
  whose parents have ended. Not stopped is what others run for it: a
  container, a systemd unit, a command on another host. What runs as
  another user can't be killed without that user's rights (sudo): this
  is reported as soon as it is seen, and again when such a process
  outlives the lock.

  The command runs in a process group of its own. With --foreground,
  or if polylock is in the foreground of a terminal, the command stays
  there: then Ctrl-C comes from the terminal.

SIGNALS
  HUP INT QUIT TERM USR1 USR2 CONT are passed on to the command (INT
  and QUIT come from the terminal itself when in the foreground).
  While waiting, HUP INT QUIT TERM leave the queue and end.

ENVIRONMENT OF THE COMMAND
  POLYLOCK_NAME, POLYLOCK_MODE, POLYLOCK_FENCING_TOKEN,
  POLYLOCK_OWNER, POLYLOCK_BACKEND, POLYLOCK_TTL_MS,
  POLYLOCK_EXPIRES_AT_MS (of the first lease, milliseconds since
  1970), POLYLOCK_OUTER (owners of outer runs), POLYLOCK_OUTER_STORE
  (the store, without secrets). The variable that holds the store's
  URL is taken away unless --keep-store-env.

  A `polylock` that the command runs uses the same store, unless it
  names another one. If the URL holds a password and comes neither
  from a file (-S file:PATH) nor from the config file, the inner
  `polylock` must name its store, and is refused otherwise.

STATUS FILE, AND --output json
  One JSON object per line, in the file or descriptor, or with
  --output json on stderr in place of text:
    {\"ts\",\"event\",\"name\",\"mode\",\"owner\",\"label\",
     \"fencing_token\",\"expires_in_ms\",\"position\",\"backend\"}
  event is queued, acquired, renewed, lost, unkillable, released or
  expired (left to expire by --min-hold), or dropped with \"dropped\",
  the number of events that are left out there because the earlier
  ones had not been read. lost and unkillable have \"reason\"; lost has \"by\" and \"broken_reason\" if the lock was
  broken. The last line has the event verdict with \"verdict\"
  (command, busy, skipped, lost, max_hold, interrupted, reentered,
  error), \"exit_code\" and \"reason\".";

pub(crate) const STATUS: &str = "\
OUTPUT
  With --output jsonl one object per lock and line, with --output json
  one document:
    {\"name\",\"state\",\"backend\",\"store\",\"holders\":[ENTRY],
     \"waiters\":[ENTRY]}
  where state is free, held or waiting, store is the URL without
  secrets, and ENTRY is
    {\"mode\",\"owner\",\"label\",\"fencing_token\",
     \"age_ms\",\"expires_in_ms\",\"position\",\"broken\"}
  \"broken\" is null, or {\"by\",\"reason\"} of a hold that was broken
  and whose holder has not stopped yet.";

pub(crate) const SCHEMA: &str = "\
The program that opens a store makes its tables by itself. Where its
user may not, an administrator runs what this prints:

    polylock schema -S postgres://app@db/app | psql postgres://admin@db/app
    polylock schema -S mysql://app@db/app | mysql -h db -u admin

The store is not asked. Nothing is printed for a store that needs
nothing made for it, such as SQLite. What is there already is left as
it is, so it may be run again.

RIGHTS OF THE PROGRAM'S USER, BESIDE THAT TO CONNECT
  PostgreSQL (polylock.schema is public, polylock.table is polylock):
    GRANT USAGE ON SCHEMA public TO app;
    GRANT SELECT ON public.polylock_meta TO app;
    GRANT SELECT, INSERT, UPDATE, DELETE
      ON public.polylock_holds, public.polylock_waiters,
      public.polylock_broken TO app;
    GRANT USAGE ON SEQUENCE public.polylock_tokens TO app;
  (EXECUTE on the functions is everybody's unless it was revoked.
  With polylock.strategy=pessimistic polylock_rows and
  polylock_sessions take the place of those three tables.)

  MySQL and MariaDB (the database is app):
    GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON app.* TO app;";

pub(crate) const ADMIT: &str = "\
A server of a Redlock whose data is new does not vote until every
lease of before must have expired: it may have lost its data, and
with them votes for locks that are held. For a set of servers that
was never used for locks before, this command ends that delay.

It is refused for other stores, and while any of the servers has a
vote for a lock.

OUTPUT
  The servers whose votes count from now on; with --output json or
  jsonl one object each: {\"event\":\"admitted\",\"server\"}";

pub(crate) const BREAK: &str = "\
The holder is told to stop: at once if the store can push, else at its
next renewal, within a third of its TTL. `polylock run` then sends its
command the signal, kills it after the grace, and releases the lock.
Until then the holder keeps the lock, but not beyond its lease, so the
next holder never works beside it. It shows by whom and for what
reason the lock was broken.

With --force the lock is free at once. Its holder may go on working
beside the next one until it notices, at its next renewal. Only what
checks fencing tokens refuses it at once.

EXIT CODE
  0    done, or nobody holds the lock
  75   with --wait: the holder has not stopped in time

OUTPUT
  With --output json or jsonl one object per holder, as in
  `polylock run --help`, with event broken, \"forced\", \"by\" and
  \"reason\"; \"expires_in_ms\" is when it ends at the latest.";
