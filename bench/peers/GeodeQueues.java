import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.asyncqueue.AsyncEvent;
import org.apache.geode.cache.asyncqueue.AsyncEventListener;
import org.apache.geode.cache.asyncqueue.AsyncEventQueue;
import org.apache.geode.cache.asyncqueue.internal.AsyncEventQueueImpl;
import org.apache.geode.internal.cache.wan.AbstractGatewaySender;

/**
 * Owns one member of a Geode site with serial asynchronous event queues, each with a region that feeds it. It is asked as
 * a GeodeMember is. Keys have 16 characters and values 100 bytes. What is put lies ready before the clock starts.
 *
 * <p>Arguments: queues NAME PORT-OF-THE-LOCATOR FOLDER
 */
public final class GeodeQueues {
  private static final int ROWS = 10_000;
  private static final int KEY_BYTES = 16;
  private static final int VALUE_BYTES = 100;
  private static final int BATCH = 1000;
  private static final int MEMORY_MB = 1000;
  private static final int ANSWER_TIMEOUT_S = 100;
  private final Cache cache;
  private final Map<String, Listener> listeners = new HashMap<>();
  private final List<Map<String, byte[]>> batches = new ArrayList<>();
  private long events;

  private GeodeQueues(Cache cache) {
    this.cache = cache;
  }

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[2]);
    Cache cache = new CacheFactory(GeodeMember.properties(arguments[1], port)).create();
    GeodeMember.serve(cache, new GeodeQueues(cache)::run);
  }

  private String run(String[] words) throws Exception {
    switch (words[0]) {
      case "keys":
        prepare(Integer.parseInt(words[1]), Long.parseLong(words[2]));
        return "\"keys\": " + events;
      case "queue":
        return queue(words[1]);
      case "fill":
        return fill(words[1]);
      case "drain":
        return drain(words[1]);
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  /** Maps for putAll, with keys in random order. */
  private void prepare(int count, long seed) {
    Random random = new Random(seed);
    List<String> keys = new ArrayList<>(count);
    for (int n = 0; n < count; n++) {
      keys.add(String.format("%016d", n));
    }
    Collections.shuffle(keys, random);
    for (int row = 0; row < count; row += ROWS) {
      Map<String, byte[]> batch = new HashMap<>(ROWS * 2);
      for (String key : keys.subList(row, Math.min(count, row + ROWS))) {
        byte[] value = new byte[VALUE_BYTES];
        random.nextBytes(value);
        batch.put(key, value);
      }
      batches.add(batch);
    }
    events = count;
  }

  /** Creates a queue with one dispatcher, and its region. Both are named after what the listener does. */
  private String queue(String kind) {
    Listener listener = kind.equals("count") ? new Counting() : new Reading();
    listeners.put(kind, listener);
    cache
        .createAsyncEventQueueFactory()
        .setParallel(false)
        .setDispatcherThreads(1)
        .setBatchSize(BATCH)
        .setMaximumQueueMemory(MEMORY_MB)
        .setPersistent(false)
        .create(kind, listener);
    cache.<String, byte[]>createRegionFactory(RegionShortcut.REPLICATE).addAsyncEventQueueId(kind).create(kind);
    return "\"queue\": true";
  }

  /** Pauses the queue and puts every key once. The public interface can pause a queue only when it is created. */
  private String fill(String kind) throws InterruptedException {
    AbstractGatewaySender sender =
        (AbstractGatewaySender) ((AsyncEventQueueImpl) cache.getAsyncEventQueue(kind)).getSender();
    sender.pause();
    sender.getEventProcessor().waitForDispatcherToPause(); // It would take the first events otherwise.
    listeners.get(kind).expect(events);
    Region<String, byte[]> region = cache.getRegion(kind);
    for (Map<String, byte[]> batch : batches) {
      region.putAll(batch);
    }
    return "\"size\": " + region.size();
  }

  /** From resuming the queue until the listener has seen the last event. */
  private String drain(String kind) throws InterruptedException {
    Listener listener = listeners.get(kind);
    AsyncEventQueue queue = cache.getAsyncEventQueue(kind);
    check(listener.left == events && queue.size() == events, listener.left + " left, " + queue.size() + " queued");
    long start = System.nanoTime(), processor = processorNs();
    queue.resumeEventDispatching();
    check(listener.hasAll.await(ANSWER_TIMEOUT_S, TimeUnit.SECONDS), listener.left + " events have not come");
    double ns = listener.ended - start, processorNs = listener.endedProcessor - processor;
    for (int n = 0; queue.size() > 0; n++) { // The last batch leaves the queue after its listener has returned.
      check(n < ANSWER_TIMEOUT_S * 1000, "the queue does not become empty");
      Thread.sleep(1);
    }
    long read = kind.equals("read") ? events * (KEY_BYTES + VALUE_BYTES) : 0;
    check(listener.bytes == read, "it has read " + listener.bytes + " bytes");
    return "\"events\": " + events + ", \"rate\": " + events * 1e9 / ns + ", \"processor_us\": " + processorNs / events / 1e3;
  }

  private static void check(boolean holds, String trouble) {
    if (!holds) {
      throw new IllegalStateException(trouble);
    }
  }

  private static long processorNs() {
    return ((com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  /** Counts the events of a round, and keeps when it has seen the last one. The queue's one dispatcher calls it. */
  private abstract static class Listener implements AsyncEventListener {
    volatile long left, ended, endedProcessor;
    volatile long bytes; // Of the keys and values that it has read in this round.
    volatile CountDownLatch hasAll;

    void expect(long events) {
      check(left == 0, left + " events of the last round have not come");
      bytes = 0;
      hasAll = new CountDownLatch(1);
      left = events;
    }

    void count(long events) {
      left -= events;
      if (left == 0) {
        ended = System.nanoTime();
        endedProcessor = processorNs();
        hasAll.countDown();
      }
    }
  }

  private static final class Counting extends Listener {
    @Override
    @SuppressWarnings("rawtypes")
    public boolean processEvents(List<AsyncEvent> events) {
      count(events.size());
      return true;
    }
  }

  private static final class Reading extends Listener {
    @Override
    @SuppressWarnings("rawtypes")
    public boolean processEvents(List<AsyncEvent> events) {
      long taken = 0;
      for (AsyncEvent event : events) {
        taken += ((String) event.getKey()).length() + ((byte[]) event.getDeserializedValue()).length;
      }
      bytes += taken;
      count(events.size());
      return true;
    }
  }
}
