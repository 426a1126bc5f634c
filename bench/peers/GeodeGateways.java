import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.BooleanSupplier;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.PartitionAttributesFactory;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.partition.PartitionRegionHelper;
import org.apache.geode.internal.cache.PartitionedRegion;
import org.apache.geode.internal.cache.wan.AbstractGatewaySender;

/**
 * Owns one member of a Geode site with a gateway receiver, and with regions whose events go to another site. It is asked as
 * a GeodeMember is. Keys have 16 characters and values 100 bytes. What is put lies ready before the clock starts. Times are
 * CLOCK_MONOTONIC in ns, which is the same in all processes.
 *
 * <p>Arguments: gateways NAME PORT-OF-THE-LOCATOR FOLDER
 */
public final class GeodeGateways {
  private static final int ANSWER_TIMEOUT_S = 100;
  private static final int BATCH = 1000;
  private static final int BATCH_INTERVAL_MS = 10;
  private static final int BUCKETS = 113;
  private static final int MEMORY_MB = 2000;
  private static final int VALUE_BYTES = 100;
  private final Cache cache;
  private String[] keys;
  private byte[] template;
  private List<Map<String, byte[]>> ready = new ArrayList<>(); // What the calls of the next round put.

  private GeodeGateways(Cache cache) {
    this.cache = cache;
  }

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[2]);
    Cache cache = new CacheFactory(GeodeMember.properties(arguments[1], port)).create();
    GeodeMember.serve(cache, new GeodeGateways(cache)::run);
  }

  private String run(String[] words) throws Exception {
    switch (words[0]) {
      case "receive":
        return "\"port\": " + cache.createGatewayReceiverFactory().setBindAddress("127.0.0.1")
            .setHostnameForSenders("127.0.0.1").create().getPort();
      case "flow":
        return flow(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
      case "assign":
        PartitionRegionHelper.assignBucketsToPartitions(cache.getRegion(words[1]));
        return "\"buckets\": " + BUCKETS;
      case "primaries":
        PartitionedRegion region = (PartitionedRegion) cache.<String, byte[]>getRegion(words[1]);
        int copies = region.getDataStore().getAllLocalBucketIds().size();
        return "\"led\": " + region.getDataStore().getAllLocalPrimaryBucketIds().size() + ", \"copies\": " + copies;
      case "connected":
        return at(() -> sender(words[1]).isRunning());
      case "keys":
        return keys(Integer.parseInt(words[1]), Long.parseLong(words[2]));
      case "prepare":
        return prepare(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
      case "send":
        return send(cache.getRegion(words[1]));
      case "drained":
        return at(() -> !sends(sender(words[1])) || sender(words[1]).getEventQueueSize() == 0);
      case "emptied":
        return at(() -> sender(words[1]).getEventQueueSize() + sender(words[1]).getSecondaryEventQueueSize() == 0);
      case "holds":
        return holds(cache.getRegion(words[1]), Integer.parseInt(words[2]));
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private AbstractGatewaySender sender(String kind) {
    return (AbstractGatewaySender) cache.getGatewaySender(kind);
  }

  /** Whether events of this member's queue leave from here: every member sends the buckets of a parallel sender. */
  private static boolean sends(AbstractGatewaySender sender) {
    return sender.isParallel() || sender.isPrimary();
  }

  /** Creates a sender to another site, and its region. Both are named after the kind of the sender. */
  private String flow(String kind, int remote, int dispatchers) {
    cache
        .createGatewaySenderFactory()
        .setParallel(kind.equals("parallel"))
        .setDispatcherThreads(dispatchers)
        .setBatchSize(BATCH)
        .setBatchTimeInterval(BATCH_INTERVAL_MS)
        .setMaximumQueueMemory(MEMORY_MB)
        .create(kind, remote);
    PartitionAttributesFactory<String, byte[]> partition = new PartitionAttributesFactory<>();
    partition.setRedundantCopies(1).setTotalNumBuckets(BUCKETS);
    cache
        .<String, byte[]>createRegionFactory(RegionShortcut.PARTITION)
        .setPartitionAttributes(partition.create())
        .addGatewaySenderId(kind)
        .create(kind);
    return "\"flow\": true";
  }

  /** Keys in random order. */
  private String keys(int count, long seed) {
    Random random = new Random(seed);
    keys = new String[count];
    for (int n = 0; n < count; n++) {
      keys[n] = String.format("%016d", n);
    }
    Collections.shuffle(Arrays.asList(keys), random);
    template = new byte[VALUE_BYTES];
    random.nextBytes(template);
    return "\"keys\": " + count;
  }

  /** What a round puts: every key once, with a value of its own in each round, in calls of so many rows. */
  private String prepare(int rows, int round) {
    ready = new ArrayList<>();
    for (int first = 0; first < keys.length; first += rows) {
      Map<String, byte[]> entries = new HashMap<>(rows * 2);
      for (int n = first; n < Math.min(first + rows, keys.length); n++) {
        byte[] value = template.clone();
        value[0] = (byte) round;
        entries.put(keys[n], value);
      }
      ready.add(entries);
    }
    return "\"calls\": " + ready.size();
  }

  /** Puts what is ready: when the first call began, and when the last one returned. */
  private String send(Region<String, byte[]> region) {
    List<Map<String, byte[]>> calls = ready;
    ready = new ArrayList<>();
    if (calls.isEmpty()) {
      throw new IllegalStateException("nothing was prepared");
    }
    long began = System.nanoTime();
    for (Map<String, byte[]> entries : calls) {
      region.putAll(entries);
    }
    return "\"began\": " + began + ", \"ended\": " + System.nanoTime();
  }

  /** How many entries of this member's copies have the value of a round. */
  private static String holds(Region<String, byte[]> region, int round) {
    long found = 0;
    for (byte[] value : PartitionRegionHelper.getLocalData(region).values()) {
      found += value[0] == (byte) round ? 1 : 0;
    }
    return "\"entries\": " + found;
  }

  /** The time at which a condition held, within a millisecond. */
  private static String at(BooleanSupplier condition) throws InterruptedException {
    long end = System.nanoTime() + ANSWER_TIMEOUT_S * 1_000_000_000L;
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new IllegalStateException("not within " + ANSWER_TIMEOUT_S + " s");
      }
      Thread.sleep(1);
    }
    return "\"at\": " + System.nanoTime();
  }
}
