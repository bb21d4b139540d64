//! The long texts of `--help` and of the manual.

mod measure;

pub(crate) use measure::{BENCH, CHECK};

pub(crate) const MAIN: &str = "\
CONFIG FILE
  A TOML file with `store` and the settings of that store. Each
  [profiles.NAME] overrides some of them:

    store = \"sqlite:///var/lib/locks.db\"
    ttl = \"30s\"
    [profiles.nightly]
    ttl = \"5m\"

  The settings apply only to the store that the file names (or to the
  default store if it names none), not to a store that -S or
  $POLYLOCK_STORE selects.

DURATIONS
  A number without a unit is in seconds and may have a fraction (2.5).
  With units: 1m30s, 250ms.

EXAMPLES
  polylock run backup rsync -a /data host:/backup
  polylock run -n --skip-ok nightly ./report.sh
  polylock status backup";

pub(crate) const RUN: &str = "\
EXIT CODE
  the command's exit code, or 128 + the signal that ended it; and
  0    with --skip-ok: the lock was busy; the command was not run
  75   (-E) the lock is held elsewhere, or the wait timed out; the
       command was not run
  79   (--lost-exit-code) the lock was lost; the command was stopped
  64   wrong usage
  69   the store is unreachable
  70   internal error, or a limit of the process (files, stack, threads)
  73   the status file can't be written
  77   access denied
  78   invalid or unsupported URL or setting, also one of the server
  124  the command was stopped because of --max-hold
  126  the command can't be run
  127  the command does not exist
  130, 143, …  a signal ended the wait; the request has left the queue

  A command may itself exit with 75, 79 or 124. The verdict in the status
  file distinguishes them.

SEVERAL LOCKS
  With --also NAME the command runs while this lock and the other ones
  are held. They are acquired in the order of their names, so runs with
  several locks do not deadlock. A run inside another run can deadlock
  with others: give all locks to the outer run, or use --wait. --wait
  limits the wait for all of them. All other options apply to each, and
  the loss of one is the loss of all.

SLOTS
  With --slots N up to N runs with this name run at the same time, each
  with a slot of its own, first come, first served. Everything else is as
  with a lock. All runs must have the same N; a run with another N exits
  with 78. The lock with the same name is independent of them. A run
  inside another run with slots of this name takes one more slot and must
  have -n or --wait, because such runs can wait for each other. If the
  outer runs have all N slots, it exits with 64.

WHEN THE LOCK IS LOST
  The lease is renewed at every third of the TTL. If no renewal is
  acknowledged, the command gets --signal one grace period before
  another process can acquire the lock, and SIGKILL before that time.
  (The first lease of a lock that another holder has just handed over
  lasts five seconds at most. Until its first renewal, the grace period
  is half of it at most.) If the lock was broken or is gone, the command
  gets the signal at once and SIGKILL one grace period later. A broken
  lock is released when the command has ended. A helper process
  (`polylock __warden`) kills the command even if polylock itself is
  killed or stopped.

  All processes that the command has started are stopped with it, also
  those that have left its process group or its session, and those with
  parents that have ended. Processes that another program starts on
  behalf of the command are not stopped: a container, a systemd unit, a
  command on another host. A process of another user can't be killed
  without that user's rights (sudo). It is reported when it is first
  seen, and again when it outlives the lock.

  The command runs in a process group of its own. With --foreground, or
  if polylock is in the foreground of a terminal, it stays in polylock's
  process group, and Ctrl-C reaches it from the terminal.

SIGNALS
  HUP INT QUIT TERM USR1 USR2 CONT are forwarded to the command (except
  INT and QUIT in the foreground: the terminal sends them itself). While
  polylock waits for the lock, HUP INT QUIT TERM remove the request from
  the queue and end polylock. A second one ends it at once.

ENVIRONMENT OF THE COMMAND
  POLYLOCK_NAME, POLYLOCK_FENCING_TOKEN, and with --also
  POLYLOCK_NAME_2, POLYLOCK_FENCING_TOKEN_2 for the first of these
  locks, and so on with greater numbers; with --slots POLYLOCK_SLOT
  (from 0), and the token is that of the slot; POLYLOCK_MODE,
  POLYLOCK_OWNER, POLYLOCK_BACKEND, POLYLOCK_TTL_MS,
  POLYLOCK_EXPIRES_AT_MS (of the first lease, milliseconds since
  1970), POLYLOCK_OUTER (owners of outer runs), POLYLOCK_WARDENS (their
  wardens), POLYLOCK_OUTER_STORE (the store, without secrets). The
  variable with the store's URL is removed unless --keep-store-env is
  given.

  A `polylock` that the command runs uses the same store unless it names
  another one. If the URL contains a password and comes neither from a
  file (-S file:PATH) nor from the config file, the inner `polylock` must
  name its store, and otherwise exits with 78.

STATUS FILE, AND --output json
  One JSON object per line, in the file or descriptor, or with
  --output json on stderr in place of text:
    {\"ts\",\"event\",\"name\",\"mode\",\"owner\",\"label\",
     \"fencing_token\",\"expires_in_ms\",\"position\",\"backend\"}
  \"event\" is queued, acquired, renewed, lost, unkillable, released,
  expired (left to expire by --min-hold), dropped or verdict.
  lost and unkillable have \"reason\"; lost also has \"by\" and
  \"broken_reason\" if the lock was broken. dropped has \"dropped\": the
  number of events that are missing at this point, because the earlier
  ones had not been read. verdict is the last line and has \"verdict\"
  (command, busy, skipped, lost, max_hold, interrupted, reentered,
  error), \"exit_code\" and \"reason\". With --also, \"name\" is the lock
  that is awaited or lost in queued and lost; the other events have
  \"also\":[{\"name\",\"fencing_token\"}]. With --slots, events from
  acquired on have \"slot\".";

pub(crate) const ELECT: &str = "\
Start the same command line on several machines. One of them runs CMD;
the others wait, and cost the store no more than waiters. When the leader
ends, dies or loses the store, the next one runs CMD. The CMD of a former
leader has stopped before the next one starts, by the same means as with
`polylock run`: see WHEN THE LOCK IS LOST in `polylock run --help`.

A leader that has lost the lock stops CMD and campaigns again. polylock
waits without a limit, also for a store that is unreachable. The election
NAME is the lock NAME: `polylock status NAME` shows the leader, and
`polylock break NAME` makes it step down behind the others.

WHEN THE COMMAND EXITS BY ITSELF
  --restart no          polylock releases the lock, and exits with the
                        code of CMD. Let a supervisor (systemd, a
                        container's restart policy) start it again. This
                        is the default, as in `consul lock`
  --restart on-failure  the same for code 0. Otherwise polylock releases
                        the lock, and campaigns again after
                        --restart-delay
  --restart always      polylock campaigns again after every exit
  The lock is released before a restart, so another machine runs CMD next
  if one waits. A command that does not exist or can't be run ends
  polylock in any case.

SIGNALS
  As with `polylock run`. After INT, QUIT or TERM, polylock ends with CMD,
  whatever --restart says; after HUP, if CMD is ended by it.

EXIT CODE
  the command's exit code, or 128 + the signal that ended it; and
  79   the lock was lost, and polylock could not campaign again: a process
       of CMD can't be killed, or a signal has requested polylock to end
  64, 69, 70, 73, 77, 78, 126, 127  as with `polylock run`
  130, 143, …  a signal ended the wait

The environment of CMD, the status file and --output json are those of
`polylock run`. Each term has an event \"acquired\", with a greater
fencing token than all terms before it on any machine.

EXAMPLES
  polylock elect -S postgres://locks@db/app scheduler ./scheduler
  polylock elect --ttl 10s --restart always mail-queue ./worker mail";

pub(crate) const ONCE: &str = "\
Start the same command line on several machines at about the same time,
with cron for example. One of them runs CMD in each period; on the others
polylock exits with 0, and prints nothing unless a terminal reads it or
-v is set. The store keeps a record of the last run, which outlives the
lock: it also decides which period it is, by its own clock. So the clocks
of the machines may differ, and CMD may take milliseconds.

A period begins at --at, in UTC or --time-zone. A run that begins shortly
before counts for it: up to a tenth of the period, and a minute at most.
--every 1d is the default. Use the same --every, --at and --time-zone on
all machines.

The job NAME runs under the lock NAME, as with `polylock run`: see WHEN
THE LOCK IS LOST in `polylock run --help`. If another machine runs CMD
and --retries allows another attempt, polylock waits for its end, as long
as --wait says.

ATTEMPTS
  CMD has succeeded if it exits with 0. Any other end is recorded with
  its reason, and polylock exits with the code of CMD. With --retries N,
  the next call on any machine runs CMD again, up to N times in the
  period. An attempt without a recorded end counts as failed: its machine
  has died, or has lost the lock. Without --retries, CMD begins once per
  period at most, whatever happens.

  `polylock status NAME` shows the last run. In the environment of CMD,
  POLYLOCK_ATTEMPT is the number of the attempt, from 1, and
  POLYLOCK_PERIOD_BEGIN_MS the begin of the period in milliseconds since
  1970. The rest of it is that of `polylock run`.

STORES
  Every store but Redlock, ZooKeeper and Azure Blob Storage keeps records;
  those three, and a transition (both:) from or to them, end with 78.

TIME ZONES
  If cron counts local time, name its zone: --time-zone Europe/London. A
  period is then a day there, of 23 or 25 hours when the clock changes,
  or --every whole days. If the clock skips --at on a day, the period
  begins right after the gap; if it shows --at twice, at the first time.
  `local` is the zone of the machine (TZ, else /etc/localtime), which must
  be the same on all machines. The zones are those of the system's package
  tzdata; UTC needs none.

EXIT CODE
  0    CMD has succeeded, here or elsewhere in this period; or no attempt
       of the period is left
  75   another machine runs CMD, and --no-wait or --wait has ended the wait
  and those of `polylock run`

EXAMPLES
  0 2 * * *  polylock once -S postgres://locks@db/app --at 02:00 --time-zone Europe/London nightly ./report
  */5 * * * *  polylock once --every 5m --retries 2 sync ./sync";

pub(crate) const ACQUIRE: &str = "\
A hold without a process, for scripts that `polylock run` can't wrap:

  handle=$(polylock acquire --for 2h gpu) || exit
  …
  polylock renew \"$handle\" || exit     # still held, for another 2h
  polylock release \"$handle\"

The script is not stopped when the lease ends: renew it before every step
that needs the lock, and stop if that fails. The handle suffices to
release the lock. It is valid for the same store only.

  polylock acquire --while-pid $$ gpu

renews the lock in the background as long as the script runs, however it
ends. With --hold, the command itself stays and renews the lock.

EXIT CODE
  0    done
  64   the handle, or the command line, is invalid
  69   the store is unreachable
  75   the lock is held elsewhere (with -n, -w)
  79   the hold has ended: its lease is over, or it was broken or released
";

pub(crate) const STATUS: &str = "\
OUTPUT
  --output jsonl prints one object per lock and line, --output json
  prints one document:
    {\"name\",\"state\",\"backend\",\"store\",\"holders\":[ENTRY],
     \"waiters\":[ENTRY],\"last_grant\"}
  \"state\" is free, held or waiting. \"store\" is the URL without secrets.
  ENTRY is
    {\"mode\",\"owner\",\"label\",\"fencing_token\",
     \"age_ms\",\"expires_in_ms\",\"position\",\"broken\"}
  If the semaphore with this name is in use (run --slots), status has
    \"semaphore\":{\"slots\",\"held\":[{\"slot\", ENTRY}],\"waiters\":[ENTRY]}
  and list has an object for each of its locks, with \"slot\".
  If the job with this name has run (polylock once), status has
    \"last_run\":{\"outcome\",\"reason\",\"owner\",\"label\",
     \"fencing_token\",\"attempt\",\"started_at_ms\",\"ended_at_ms\",
     \"next_due_ms\"}
  with an outcome of succeeded, failed or unfinished. The times are those
  of the store, in milliseconds since 1970.
  \"broken\" is null, or {\"by\",\"reason\"} for a hold that was broken and
  has not ended yet. \"last_grant\" of a free lock is null, or
    {\"owner\",\"label\",\"fencing_token\",\"age_ms\"}
  if the store keeps it (Azure Blob Storage does).

EXIT CODE
  0    the status was printed
  75   with `status --exit-code`: the lock, or a slot with its name, has a
       holder
  69, 77, 78  the store can't be read

    if polylock status --exit-code backup >/dev/null; then echo free; fi";

pub(crate) const WATCH: &str = "\
The present state comes first: a line \"held\" for each holder and
\"waiting\" for each waiter. Then a line for each event:

  queued       a request waits, at this position
  granted      a request holds the lock
  left         a waiter has gone away without the lock
  broken       a holder was requested to stop
  ended        a hold has ended before the end of its lease: released, or
               broken by force
  expired      a hold has ended with its lease: its holder has died, or
               has lost its connection
  unavailable  the store can't be read; polylock goes on trying
  available    the store can be read again

SQLite is read when the file has changed, other stores every second, so a
watch costs them less than a waiter. A hold that comes and goes between
two reads is not shown. A read of many locks takes several commands on
Redis, ZooKeeper and Azure Blob Storage, and is then made less often, but
at least every ten seconds.

OUTPUT
  --output json and --output jsonl print one object per line:
    {\"ts\",\"event\",\"backend\",\"name\",\"mode\",\"owner\",\"label\",
     \"fencing_token\",\"age_ms\",\"expires_in_ms\",\"position\",
     \"broken\",\"waited_ms\",\"reason\"}
  \"reason\" is the error of an outage. An event of the store, not of a lock,
  has only \"ts\", \"event\", \"backend\" and \"reason\".

EXAMPLES
  polylock watch orders/
  polylock watch --exact nightly --output jsonl | jq -r .owner";

pub(crate) const TOP: &str = "\
Each line is a lock: its mode, the time for which it is held, the rest of
its lease, the slack (the shortest rest of the lease at a renewal: close
to 0 means that renewals come late), the number of waiters, and its
holder. Below are all holders and the queue of the selected lock.

The store is read as by `polylock watch`, so `top` costs it less than a
waiter. ZooKeeper and Azure Blob Storage do not return the rest of a
lease: they show the whole lease, and no slack.

KEYS
  up, down, PgUp, PgDn, Home, End   select a lock
  s, S         sort by the next column, reverse the order
  /            show only locks whose name, owner or label has a text
  w            show the tree of owners that wait for each other
  b            break the selected lock, with a reason and a confirmation
  r            read the store now
  q, Ctrl-C    quit";

pub(crate) const SERVE: &str = include_str!("help/serve.txt");

pub(crate) const SCHEMA: &str = "\
A program that opens a store creates the tables itself. If its user may
not do that, an administrator runs the output of this command:

    polylock schema -S postgres://app@db/app | psql postgres://admin@db/app
    polylock schema -S mysql://app@db/app | mysql -h db -u admin

polylock does not connect to the store. The output is empty for a store
that needs no preparation, such as SQLite. The statements do not change
existing objects and may be run again.

FENCES
  With --fence the output creates a fence for your own data, which refuses
  a write with a smaller fencing token than it has seen. Only the kind of
  the store's server matters: the locks may be in another store.

    polylock schema --fence -S postgres://app@db/app | psql ...

  Call the fence in the transaction of the write, and before it:
    PostgreSQL      SELECT public.polylock_fence('orders/42', 7)
    MySQL, MariaDB  CALL polylock_fence('orders/42', 7)
    SQLite          INSERT INTO polylock_fence VALUES ('orders/42', 7)
  An equal token is accepted. A smaller one fails with SQLSTATE 23PLF
  (SQLite: SQLITE_CONSTRAINT_TRIGGER); roll the transaction back. The user
  needs SELECT, INSERT and UPDATE on the table polylock_fences, and on
  MySQL EXECUTE. For Redis the output is a Lua script.

  With --table the output is a trigger: an UPDATE of a row that sets the
  column fencing_token to a smaller value fails with the same error. It
  does not see inserts, deletes, REPLACE, and updates that leave the
  column unchanged: use the function for those. On MySQL, run the output
  of --drop before you run it again.

RIGHTS OF THE PROGRAM'S USER, IN ADDITION TO THE RIGHT TO CONNECT
  PostgreSQL (polylock.schema is public, polylock.namespace is polylock):
    GRANT USAGE ON SCHEMA public TO app;
    GRANT SELECT ON public.polylock_meta TO app;
    GRANT SELECT, INSERT, UPDATE, DELETE
      ON public.polylock_holds, public.polylock_waiters,
      public.polylock_broken, public.polylock_runs TO app;
    GRANT USAGE ON SEQUENCE public.polylock_tokens TO app;
  (Every user has the right EXECUTE on the functions unless it was
  revoked. With polylock.strategy=pessimistic, the tables are
  polylock_rows and polylock_sessions instead of the first three.)

  MySQL and MariaDB (the database is app):
    GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON app.* TO app;";

pub(crate) const ADMIT: &str = "\
A Redlock server with new data does not vote until every earlier lease
has expired: the server may have lost its data, and with it votes for
locks that are held. This command ends that delay for a set of servers
that was never used for locks before.

It is refused for other stores, and while any of the servers has a vote
for a lock.

OUTPUT
  The servers whose delay has ended. --output json and --output jsonl
  print one object for each: {\"event\":\"admitted\",\"server\"}";

pub(crate) const BREAK: &str = "\
The holder is notified: at once if the store can push, otherwise at its
next renewal, within a third of its TTL. `polylock run` then sends the
signal to its command, kills the command after the grace period, and
releases the lock. Until then the holder keeps the lock, but not beyond
its lease, so the next holder never works beside it. The holder shows the
owner and the reason of the break.

The slots of a semaphore (run --slots) are independent of the lock with
its name: break one with --slot N.

With --force the lock is free at once. The former holder may continue to
work beside the next one until its next renewal. Only a resource that
checks fencing tokens refuses the former holder at once.

EXIT CODE
  0    the lock was broken, or was not held
  75   with --wait: the holder has not stopped in time

OUTPUT
  --output json and --output jsonl print one object per holder, as in
  `polylock run --help`, with the event broken, \"forced\", \"by\" and
  \"reason\". The hold ends in \"expires_in_ms\" at the latest.";
