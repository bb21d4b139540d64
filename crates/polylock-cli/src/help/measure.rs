//! The texts of `check` and `bench`.

pub(crate) const CHECK: &str = "\
The check opens the store in new namespaces (polylock_check_…: tables, a
key prefix, nodes or blobs of its own), and deletes them at its end, also
after Ctrl-C or a failure. It reads and changes nothing else in the
store. The user needs the rights to create tables.

`polylock check --only settings` takes a moment and shows the store that
polylock uses here.

PARTS
  settings     the store in use, the flag, variable or file that names
               it, the programs that share it, and weaknesses of its
               configuration; what the store warns of when it is opened,
               such as data that a crash may lose; its capabilities
  latency      an acquisition with its release, and the hand-over to a
               waiter, compared with the TTL of the store's URL
  clock        suspends and steps of this machine's clocks; the rate of
               the store's clock against this machine's
  conformance  the conformance suite of polylock-testkit. Cases that the
               store does not support, or that need a server of their
               own, are counted as skipped
  faults       processes that hold locks and wait for them are stopped
               for longer than a lease, and killed. Their histories must
               show no two holders, growing tokens, losses reported in
               time, and no waiter that is not served

EXIT CODE
  0    every promise was kept; there may be warnings
  1    a promise was broken, or the namespaces could not be deleted
  69, 77, 78  the store can't be opened
  130, 143, …  a signal ended the check

OUTPUT
  --output json prints one document:
    {\"store\",\"backend\",\"version\",\"seed\",\"duration_ms\",\"verdict\",
     \"rows\":[ROW]}
  ROW, which --output jsonl prints one per line, is
    {\"part\",\"name\",\"outcome\",\"value\",\"advice\"}
  \"outcome\" is ok, warning, failure or skipped; \"verdict\" is the worst
  of ok, warning and failure. \"advice\" is null if there is none.";

pub(crate) const BENCH: &str = "\
Each store (-S may be given several times) is measured in new namespaces
(polylock_bench_…: tables, a key prefix, nodes or blobs of its own),
which are deleted at the end, also after Ctrl-C or a failure. Nothing
else in the store is read or changed. The user needs the rights to
create tables. The store and this machine are busy meanwhile.

Beside the store, the same run measures its driver without polylock,
with the statements that a lock can't do without: the raw pair. Compare
the ratios; the times depend on the machine, the disk and the network.

PARTS
  uncontended  a task that acquires and releases a lock that no other
               task uses
  own-locks    many tasks at once, each with a lock of its own
  hand-over    from a release to the grant of the only waiter, in this
               process and in another one
  contended    tasks that compete for one lock, in this process and in
               four: hand-over, longest wait, fairness. A store that
               breaks a promise meanwhile has no numbers
  waiters      many tasks of one process wait for one lock; what other
               locks of the process notice of it
  held         many locks that one process holds and renews
  kill         from SIGKILL of a holder to the grant of a waiter

EXIT CODE
  0    everything was measured, or is not supported by the store
  1    a part failed, or the namespaces could not be deleted
  69, 77, 78  a store can't be opened; nothing was measured
  73   the HTML page can't be written
  130, 143, …  a signal ended the benchmark; the report has the parts
       that were measured

OUTPUT
  Times have units; \"/ raw\" is the ratio to the raw driver.
  --output markdown prints the same tables. --output json prints one
  document:
    {\"version\",\"commit\",\"date\",\"machine\",\"duration_s\",\"settings\",
     \"ended_by\",\"stores\":[STORE]}
  STORE is
    {\"label\",\"backend\",\"store\",\"raw\",\"no_raw_because\",\"parts\":[PART]}
  PART is
    {\"part\",\"outcome\",\"reason\",\"numbers\"}
  \"outcome\" is measured, skipped or failed. The keys of \"numbers\" depend
  on the part; a time has a key that ends with _us (microseconds), and a
  distribution of times is
    {\"count\",\"min_us\",\"p50_us\",\"p99_us\",\"max_us\"}
  or null. --output jsonl prints one object per part and line, with the
  keys of its store and of the machine.";
