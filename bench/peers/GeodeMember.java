import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.partition.PartitionRegionHelper;
import org.apache.geode.cache.PartitionAttributesFactory;
import org.apache.geode.distributed.Locator;
import org.apache.geode.internal.cache.PartitionedRegion;

/**
 * Owns one process of a Geode site: a locator, a member with copies of the region, or a member without (an accessor). It
 * answers each line of its standard input with a line of JSON, and ends with its standard input. Keys have 16 characters
 * and values 100 bytes. What is put lies ready before the clock starts.
 *
 * <p>Arguments: locator|store|accessor NAME PORT-OF-THE-LOCATOR FOLDER
 */
public final class GeodeMember {
  private static final int ROWS = 10_000;
  private static final int VALUE_BYTES = 100;
  private Region<String, byte[]> region;
  private String[] keys;
  private byte[][] values;
  private Map<String, byte[]>[] batches;
  private int nextBatch;

  static Properties properties(String name, int port) {
    Properties properties = new Properties();
    properties.setProperty("name", name);
    properties.setProperty("mcast-port", "0");
    properties.setProperty("bind-address", "127.0.0.1");
    properties.setProperty("locators", "127.0.0.1[" + port + "]");
    properties.setProperty("jmx-manager", "false");
    properties.setProperty("enable-cluster-configuration", "false");
    properties.setProperty("use-cluster-configuration", "false");
    properties.setProperty("log-level", "warning");
    return properties;
  }

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[2]);
    Properties properties = properties(arguments[1], port);
    if (arguments[0].equals("locator")) {
      properties.remove("locators");
      Locator.startLocatorAndDS(
          port, new File(arguments[3], "locator.log"), InetAddress.getByName("127.0.0.1"), properties);
      answer("\"ready\": true");
      System.in.transferTo(java.io.OutputStream.nullOutputStream());
      System.exit(0);
    }
    Cache cache = new CacheFactory(properties).create();
    GeodeMember member = new GeodeMember();
    boolean stores = arguments[0].equals("store");
    RegionShortcut kind = stores ? RegionShortcut.PARTITION : RegionShortcut.PARTITION_PROXY;
    PartitionAttributesFactory<String, byte[]> partition = new PartitionAttributesFactory<>();
    partition.setRedundantCopies(1).setTotalNumBuckets(113);
    if (!stores) {
      partition.setLocalMaxMemory(0);
    }
    member.region =
        cache.<String, byte[]>createRegionFactory(kind).setPartitionAttributes(partition.create()).create("data");
    serve(cache, member::run);
  }

  /** What a member does for a line: it gets the words, and returns the fields of the answer. */
  interface Handler {
    String run(String[] words) throws Exception;
  }

  /** Answers each line of the standard input. Ends the process when that ends. */
  static void serve(Cache cache, Handler handler) throws Exception {
    answer("\"ready\": true");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      try {
        answer(handler.run(line.trim().split(" ")));
      } catch (Throwable trouble) {
        trouble.printStackTrace();
        answer("\"error\": \"" + trouble.toString().replaceAll("[^ -~]|[\"\\\\]", "'") + "\"");
      }
    }
    cache.close();
    System.exit(0);
  }

  private static void answer(String fields) {
    System.out.println("{" + fields + "}");
    System.out.flush();
  }

  private String run(String[] words) throws Exception {
    switch (words[0]) {
      case "assign":
        PartitionRegionHelper.assignBucketsToPartitions(region);
        return "\"buckets\": 113";
      case "keys":
        prepare(Integer.parseInt(words[1]), Long.parseLong(words[2]));
        return "\"keys\": " + keys.length;
      case "state":
        PartitionedRegion own = (PartitionedRegion) region;
        int primaries = own.getDataStore() == null ? 0 : own.getDataStore().getAllLocalPrimaryBucketIds().size();
        return "\"primaries\": " + primaries + ", \"size\": " + region.size();
      case "fill":
        for (Map<String, byte[]> batch : batches) {
          region.putAll(batch);
        }
        return "\"size\": " + region.size();
      case "bulk":
        return bulk(Double.parseDouble(words[1]));
      case "put":
        return put(Integer.parseInt(words[1]), Double.parseDouble(words[2]));
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  /** Keys in random order, values, and maps of them for putAll. */
  @SuppressWarnings("unchecked")
  private void prepare(int count, long seed) {
    keys = new String[count];
    values = new byte[count][VALUE_BYTES];
    Random random = new Random(seed);
    for (int n = 0; n < count; n++) {
      keys[n] = String.format("%016d", n);
      random.nextBytes(values[n]);
    }
    Collections.shuffle(Arrays.asList(keys), random);
    batches = new Map[count / ROWS];
    for (int n = 0; n < batches.length; n++) {
      batches[n] = new HashMap<>(ROWS * 2);
      for (int row = n * ROWS; row < (n + 1) * ROWS; row++) {
        batches[n].put(keys[row], values[row]);
      }
    }
  }

  /** putAll of 10,000 rows each, by one thread. */
  private String bulk(double seconds) {
    long start = System.nanoTime(), end = start + (long) (seconds * 1e9), rows = 0;
    do {
      region.putAll(batches[nextBatch++ % batches.length]);
      rows += ROWS;
    } while (System.nanoTime() < end);
    return figures(rows, System.nanoTime() - start, 0);
  }

  /** Single puts, each of which returns when the copy has it. The median is that of the first thread. */
  private String put(int threads, double seconds) throws InterruptedException {
    AtomicLong done = new AtomicLong();
    long[] taken = new long[1_000_000];
    int[] measured = new int[1];
    Thread[] workers = new Thread[threads];
    long start = System.nanoTime(), end = start + (long) (seconds * 1e9);
    for (int t = 0; t < threads; t++) {
      int own = t;
      workers[t] =
          new Thread(
              () -> {
                long count = 0, before = System.nanoTime();
                for (int n = keys.length / threads * own; before < end; n++, count++) {
                  region.put(keys[n % keys.length], values[n % keys.length]);
                  long now = System.nanoTime();
                  if (own == 0 && measured[0] < taken.length) {
                    taken[measured[0]++] = now - before;
                  }
                  before = now;
                }
                done.addAndGet(count);
              });
      workers[t].start();
    }
    for (Thread worker : workers) {
      worker.join();
    }
    Arrays.sort(taken, 0, measured[0]);
    return figures(done.get(), System.nanoTime() - start, taken[measured[0] / 2]);
  }

  private static String figures(long events, long ns, long medianNs) {
    return "\"events\": " + events + ", \"rate\": " + events * 1e9 / ns + ", \"median_us\": " + medianNs / 1e3;
  }
}
