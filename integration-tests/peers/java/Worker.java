import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Clients of Curator's InterProcessMutex in a run of `chaos` or of `comparison`: see ../README.md. */
final class Worker {
    private static final List<String> BUSY = List.of("orders", "jobs", "cron");
    private static final List<String> RARE = List.of("rare/1", "rare/2", "rare/3", "rare/4");
    private static final List<String> LONG = List.of("leader", "backup");
    private static final String CROWDED = "crowded";
    private static final long OFFSET = Long.parseLong(System.getenv("BOOTTIME_OFFSET"));

    private interface Work {
        void run(String client, Random draw) throws Exception;
    }

    private final CuratorFramework curator;
    private final String name;
    private final long seed;
    private final double lease;
    private final OutputStream sections;
    private final OutputStream stalls;
    private final AtomicInteger active = new AtomicInteger();
    private final Set<String> waiting = ConcurrentHashMap.newKeySet();
    private final Set<CountDownLatch> holds = ConcurrentHashMap.newKeySet();
    private volatile boolean stops;
    private volatile boolean connected;

    private Worker(String url, String name, String directory, long seed, int lease) throws Exception {
        this.name = name;
        this.seed = seed;
        this.lease = lease;
        sections = new FileOutputStream(directory + "/" + name + ".sections");
        stalls = new FileOutputStream(directory + "/" + name + ".stalls");
        String servers = Pattern.compile("[\\d.]+:\\d+").matcher(url).results().map(MatchResult::group)
            .collect(Collectors.joining(","));
        curator = CuratorFrameworkFactory.builder().connectString(servers).sessionTimeoutMs(lease)
            .retryPolicy(new ExponentialBackoffRetry(1000, 3)).build();
        curator.getConnectionStateListenable().addListener((client, state) -> {
            connected = state.isConnected();
            if (!connected) {
                holds.forEach(CountDownLatch::countDown);
            }
        });
        curator.start();
        curator.blockUntilConnected();
        start(this::noteStalls);
    }

    private static long now() {
        return System.nanoTime() + OFFSET;
    }

    private static void write(OutputStream file, String line) {
        try {
            file.write((line + "\n").getBytes(StandardCharsets.US_ASCII));
        } catch (IOException error) {
            throw new IllegalStateException("can't write the history", error);
        }
    }

    private static void sleep(double ms) throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep((long) (ms * 1e6));
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    private void noteStalls() {
        long last = now();
        while (true) {
            try {
                sleep(30);
            } catch (InterruptedException error) {
                return;
            }
            long woken = now();
            if (woken - last > 300_000_000L) {
                write(stalls, last + " " + woken);
            }
            last = woken;
        }
    }

    private void spawn(int number, Work work) {
        active.incrementAndGet();
        start(() -> {
            try {
                work.run(name + "." + number, new Random(seed * 10_000 + number));
            } catch (Exception error) {
                error.printStackTrace();
            } finally {
                active.decrementAndGet();
            }
        });
    }

    private void use(String client, Random draw) throws Exception {
        while (!stops) {
            sleep(draw.nextDouble() * (draw.nextInt(4) == 0 ? 60 : 2));
            if (client.endsWith(".0")) {
                hold(client, LONG.get(draw.nextInt(LONG.size())), 50 + draw.nextDouble() * (lease / 2 - 50));
                continue;
            }
            List<String> names = draw.nextInt(4) == 0 ? RARE : BUSY;
            int kind = draw.nextInt(400);
            double longest = kind == 0 ? lease / 2 : kind <= 40 ? 40 : 2;
            hold(client, names.get(draw.nextInt(names.size())), draw.nextDouble() * longest);
        }
    }

    private Work once(String lock) {
        return (client, draw) -> hold(client, lock, draw.nextDouble() * 2);
    }

    private void hold(String client, String lock, double lasts) throws Exception {
        long invoked = now();
        String entry = lock + " " + client + " " + invoked;
        waiting.add(entry);
        InterProcessMutex mutex = acquire(lock);
        CountDownLatch lost = watch();
        long acquired = now();
        waiting.remove(entry);
        String begin = " " + lock + " " + client + " exclusive " + invoked + " - " + acquired + " - " + Long.MAX_VALUE + " ";
        write(sections, "v1 open" + begin + "- - -");
        boolean isLost = lost.await((long) (lasts * 1e6), TimeUnit.NANOSECONDS);
        write(sections, "v1 over" + begin + (isLost ? "- " + now() : now() + " -") + " -");
        release(mutex);
        holds.remove(lost);
    }

    /** Acquires the lock. An acquisition that gives up is started again. */
    private InterProcessMutex acquire(String lock) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(curator, "/locks/" + lock);
        while (true) {
            try {
                mutex.acquire();
                return mutex;
            } catch (Exception error) {
                sleep(50);
            }
        }
    }

    private void release(InterProcessMutex mutex) {
        try {
            mutex.release();
        } catch (Exception error) {
            // The library goes on to delete the node in the background.
        }
    }

    /** Returns a latch that opens when the connection is lost. */
    private CountDownLatch watch() {
        CountDownLatch lost = new CountDownLatch(1);
        holds.add(lost);
        if (!connected) {
            lost.countDown();
        }
        return lost;
    }

    /** A lock of `comparison` that is held until a line ends it. */
    private final class Taken {
        private final CompletableFuture<CountDownLatch> event = new CompletableFuture<>();
        private volatile boolean drops;

        void hold(String lock) throws Exception {
            long invoked = now();
            InterProcessMutex mutex = acquire(lock);
            System.out.println("held " + lock + " " + invoked + " " + now());
            CountDownLatch lost = watch();
            event.complete(lost);
            lost.await();
            long begin = now();
            boolean isLost = !drops;
            if (isLost) {
                System.out.println("lost " + lock + " " + begin);
            }
            release(mutex);
            holds.remove(lost);
            if (!isLost) {
                System.out.println("dropped " + lock + " " + begin + " " + now());
            }
        }

        void drop() {
            drops = true;
            event.thenAccept(CountDownLatch::countDown);
        }
    }

    /** Uses a lock again and again, and returns a line for each pair. */
    private String pairs(String lock, int client, long until) throws Exception {
        StringBuilder found = new StringBuilder();
        while (now() < until) {
            long invoked = now();
            InterProcessMutex mutex = acquire(lock);
            long acquired = now();
            release(mutex);
            found.append("pair ").append(client).append(' ').append(invoked).append(' ').append(acquired).append(' ')
                .append(now()).append('\n');
        }
        return found.toString();
    }

    /** A process of `comparison`: it does what the lines of its input say. */
    private void measure() throws Exception {
        System.out.println("ready");
        Map<String, Taken> all = new HashMap<>();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "take": {
                    Taken taken = new Taken();
                    all.put(words[1], taken);
                    spawn(0, (client, draw) -> taken.hold(words[1]));
                    continue;
                }
                case "drop":
                    all.remove(words[1]).drop();
                    continue;
                case "loop": {
                    long until = now() + Long.parseLong(words[3]) * 1_000_000L;
                    List<Future<String>> running = new ArrayList<>();
                    for (int client = 0; client < Integer.parseInt(words[2]); client++) {
                        int number = client;
                        running.add(threads.submit(() -> pairs(words[1], number, until)));
                    }
                    for (Future<String> pairs : running) {
                        System.out.print(pairs.get());
                    }
                    break;
                }
                case "sweep":
                    for (int number = 0; number < Integer.parseInt(words[1]); number++) {
                        release(acquire("sweep/" + number));
                    }
                    break;
                case "many":
                    for (int number = 0; number < Integer.parseInt(words[1]); number++) {
                        acquire("many/" + number);
                    }
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            System.out.println("done");
        }
        Runtime.getRuntime().halt(0);
    }

    private void run(int clients, long patience) throws Exception {
        System.out.println("ready");
        for (int number = 0; number < clients; number++) {
            spawn(number, this::use);
        }
        int next = 1000;
        if (clients == 0) {
            List<String> all = Stream.of(BUSY, RARE, LONG, List.of(CROWDED)).flatMap(List::stream).toList();
            for (String lock : all) {
                spawn(next++, once(lock));
            }
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null && line.startsWith("crowd "); line = input.readLine()) {
            for (int left = Integer.parseInt(line.substring(6)); left > 0; left--) {
                spawn(next++, once(CROWDED));
            }
        }
        stops = true;
        long limit = now() + patience * 1_000_000L;
        while (active.get() > 0 && now() < limit) {
            sleep(5);
        }
        waiting.forEach(entry -> System.out.println("stuck " + entry));
        System.out.println("done");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    public static void main(String[] a) throws Exception {
        Worker worker = new Worker(a[2], a[3], a[4], Long.parseLong(a[5]), Integer.parseInt(a[7]));
        if (a[1].equals("measure")) {
            worker.measure();
        }
        worker.run(Integer.parseInt(a[6]), 5 * Long.parseLong(a[8]));
    }
}
