import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.common.collect.RangeMap;
import com.google.protobuf.ByteString;
import io.netty.buffer.Unpooled;
import io.netty.util.Timeout;
import io.netty.util.Timer;
import io.netty.util.TimerTask;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableSet;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.delayed.DelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.bucket.BucketDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.bucket.BucketSnapshotPersistenceException;
import org.apache.pulsar.broker.delayed.bucket.BucketSnapshotStorage;
import org.apache.pulsar.broker.delayed.proto.DelayedIndex;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegmentMetadata;
import org.apache.pulsar.broker.service.persistent.PersistentDispatcherMultipleConsumers;
import org.apache.pulsar.common.util.collections.TripleLongPriorityQueue;
import org.roaringbitmap.RoaringBitmap;
import sun.misc.Unsafe;

/**
 * The broker's own {@code BucketDelayedDeliveryTracker} with a clock that is set, told what to do by lines.
 *
 * <p>A line is a history: commands with a semicolon between them, and the answer is one line of JSON, a list with one
 * element for each command. A call that throws answers {"error": <class>}. Storage answers at once, so whatever the
 * tracker begins is over when a command is; a cursor keeps its properties in the order they were put. Commands:
 *
 * <pre>
 * new minIndexCount timeStepMs maxIndexes maxBuckets tickMs strict   an empty storage and cursor, a tracker, time 0
 * now ms                 add ledger entry deliverAt       pop max           tick (the timer runs)
 * has                    contains ledger entry            clear             count
 * fail operation times   (create, metadata, segment, delete: the next ones fail as BookKeeper's do)
 * put start end base64.. (a bucket from elsewhere: its entries)             lose n (the n-th bucket's ledger)
 * rotate n               (so many of the cursor's properties are now the last)
 * recover (a new tracker)                                                   dump
 * </pre>
 *
 * <p>A line that begins with "bench" measures instead: "bench bucket|memory file count perPop rounds settings..", where
 * the file has count times ledger, entry and due time as 64-bit little-endian integers. The answer has a round's
 * nanoseconds of this thread's processor time for adding and popping all, and the queues' bytes and indexes when all
 * were added.
 */
public final class BucketTracker {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String PREFIX = BucketDelayedDeliveryTracker.DELAYED_BUCKET_KEY_PREFIX;
    private static final String CURSOR = "sub";

    private final Storage storage = new Storage();
    private final Map<String, String> properties = new LinkedHashMap<>();
    private final ManualClock clock = new ManualClock();
    private final ManualTimer timer = new ManualTimer();
    private final long minIndexCount;
    private final long timeStepMs;
    private final int maxIndexes;
    private final int maxBuckets;
    private final long tickMs;
    private final boolean strict;
    private BucketDelayedDeliveryTracker tracker;

    private BucketTracker(String[] words) throws Exception {
        minIndexCount = Long.parseLong(words[1]);
        timeStepMs = Long.parseLong(words[2]);
        maxIndexes = Integer.parseInt(words[3]);
        maxBuckets = Integer.parseInt(words[4]);
        tickMs = Long.parseLong(words[5]);
        strict = words[6].equals("strict");
        recover();
    }

    /** Ends when the standard input does. */
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer = line.startsWith("bench") ? bench(line.split(" ")) : history(line);
            answers.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    private static String history(String line) throws Exception {
        ArrayNode answers = JSON.createArrayNode();
        BucketTracker self = null;
        for (String command : line.split(";")) {
            String[] words = command.split(" ");
            try {
                if (words[0].equals("new")) {
                    self = new BucketTracker(words);
                    answers.addNull();
                } else {
                    self.obey(words, answers);
                }
            } catch (Exception | AssertionError error) {
                answers.addObject().put("error", error.getClass().getSimpleName());
            }
        }
        if (self != null && self.tracker != null) {
            self.tracker.close();
        }
        return answers.toString();
    }

    private void obey(String[] words, ArrayNode answers) throws Exception {
        switch (words[0]) {
            case "now" -> clock.millis = Long.parseLong(words[1]);
            case "add" -> {
                answers.add(tracker.addMessage(
                        Long.parseLong(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3])));
                return;
            }
            case "pop" -> {
                NavigableSet<Position> due = tracker.getScheduledMessages(Integer.parseInt(words[1]));
                ArrayNode positions = JSON.createArrayNode();
                due.forEach(each -> positions.addArray().add(each.getLedgerId()).add(each.getEntryId()));
                answers.add(positions);
                return;
            }
            case "tick" -> tracker.run(timer.newTimeout(tracker, 0, TimeUnit.MILLISECONDS));
            case "has" -> {
                answers.add(tracker.hasMessageAvailable());
                return;
            }
            case "contains" -> {
                answers.add(tracker.containsMessage(Long.parseLong(words[1]), Long.parseLong(words[2])));
                return;
            }
            case "count" -> {
                answers.add(tracker.getNumberOfDelayedMessages());
                return;
            }
            case "clear" -> tracker.clear(); // a deletion that fails is for whoever waits for what it returns
            case "fail" -> storage.failures.put(words[1], Integer.parseInt(words[2]));
            case "put" -> {
                List<byte[]> entries = new ArrayList<>();
                for (int i = 3; i < words.length; i++) {
                    entries.add(Base64.getDecoder().decode(words[i]));
                }
                properties.put(key(words[1], words[2]), Long.toString(storage.keep(entries)));
            }
            case "lose" -> {
                if (!properties.isEmpty()) {
                    storage.ledgers.remove(Long.parseLong(
                            List.copyOf(properties.values()).get(Integer.parseInt(words[1]) % properties.size())));
                }
            }
            case "rotate" -> {
                for (int i = 0; !properties.isEmpty() && i < Integer.parseInt(words[1]) % properties.size(); i++) {
                    Map.Entry<String, String> first = properties.entrySet().iterator().next();
                    properties.remove(first.getKey());
                    properties.put(first.getKey(), first.getValue());
                }
            }
            case "recover" -> {
                if (tracker != null) {
                    tracker.close();
                }
                recover();
            }
            case "dump" -> {
                answers.add(dump());
                return;
            }
            default -> throw new IllegalArgumentException("unknown: " + words[0]);
        }
        answers.addNull();
    }

    private void recover() throws Exception {
        tracker = null;
        tracker = new BucketDelayedDeliveryTracker(dispatcher(), timer, tickMs, clock, strict, storage,
                minIndexCount, timeStepMs, maxIndexes, maxBuckets);
    }

    private PersistentDispatcherMultipleConsumers dispatcher() throws Exception {
        ManagedCursor cursor = (ManagedCursor) Proxy.newProxyInstance(ManagedCursor.class.getClassLoader(),
                new Class<?>[] {ManagedCursor.class}, (proxy, method, values) -> switch (method.getName()) {
                    case "getName" -> CURSOR;
                    case "getCursorProperties" -> properties;
                    case "getMarkDeletedPosition" -> null; // 4.2 would give up buckets of ledgers before it
                    case "putCursorProperty" -> {
                        properties.put((String) values[0], (String) values[1]);
                        yield CompletableFuture.completedFuture(null);
                    }
                    case "removeCursorProperty" -> {
                        properties.remove((String) values[0]);
                        yield CompletableFuture.completedFuture(null);
                    }
                    case "hashCode" -> System.identityHashCode(proxy);
                    case "equals" -> proxy == values[0];
                    default -> throw new UnsupportedOperationException(method.getName());
                });
        Idle dispatcher = (Idle) UNSAFE.allocateInstance(Idle.class);
        dispatcher.kept = cursor;
        return dispatcher;
    }

    private ObjectNode dump() throws Exception {
        ObjectNode all = JSON.createObjectNode();
        all.put("count", tracker.getNumberOfDelayedMessages());
        ObjectNode pointers = all.putObject("properties");
        properties.forEach((name, id) -> pointers.put(name.substring(PREFIX.length() + 1), Long.parseLong(id)));
        ObjectNode ledgers = all.putObject("ledgers");
        for (Map.Entry<Long, List<byte[]>> ledger : storage.ledgers.entrySet()) {
            ledgers.set(Long.toString(ledger.getKey()), ledger(ledger.getValue()));
        }
        ArrayNode buckets = all.putArray("buckets");
        RangeMap<Long, ?> ranges = (RangeMap<Long, ?>) GET_BUCKETS.invoke(tracker);
        for (Map.Entry<?, ?> entry : ranges.asMapOfRanges().entrySet()) {
            buckets.add(bucket(entry.getValue()).put("range", entry.getKey().toString()));
        }
        Object mutable = GET_MUTABLE.invoke(tracker);
        ObjectNode last = bucket(mutable);
        last.set("queue", queue((TripleLongPriorityQueue) field(mutable, "priorityQueue")));
        all.set("mutable", last);
        all.set("shared", queue(tracker.getSharedBucketPriorityQueue()));
        return all;
    }

    private static ObjectNode bucket(Object bucket) throws Exception {
        ObjectNode node = JSON.createObjectNode();
        node.put("start", (long) field(bucket, "startLedgerId")).put("end", (long) field(bucket, "endLedgerId"));
        if (bucket.getClass().getSimpleName().equals("ImmutableBucket")) {
            node.put("id", (Long) field(bucket, "bucketId"));
            node.put("number", (long) field(bucket, "numberBucketDelayedMessages"));
            node.put("current", (int) field(bucket, "currentSegmentEntryId"));
            node.put("last", (int) field(bucket, "lastSegmentEntryId"));
            node.put("length", (long) field(bucket, "snapshotLength"));
        }
        ObjectNode bits = node.putObject("bits");
        new TreeMap<>((Map<Long, RoaringBitmap>) field(bucket, "delayedIndexBitMap"))
                .forEach((ledger, bitmap) -> bits.set(Long.toString(ledger), entries(bitmap)));
        return node;
    }

    private static ObjectNode ledger(List<byte[]> entries) throws Exception {
        ObjectNode node = JSON.createObjectNode();
        ArrayNode raw = node.putArray("entries");
        entries.forEach(each -> raw.add(Base64.getEncoder().encodeToString(each)));
        ArrayNode metadata = node.putArray("metadata");
        for (SnapshotSegmentMetadata each : metadata(entries.get(0)).getMetadataListList()) {
            ObjectNode of = metadata.addObject();
            of.put("min", each.getMinScheduleTimestamp()).put("max", each.getMaxScheduleTimestamp());
            ObjectNode bits = of.putObject("bits");
            for (Map.Entry<Long, ByteBuffer> bitmap : bitmaps(each).entrySet()) {
                RoaringBitmap decoded = new RoaringBitmap();
                decoded.deserialize(bitmap.getValue());
                bits.set(Long.toString(bitmap.getKey()), entries(decoded));
            }
        }
        ArrayNode segments = node.putArray("segments");
        for (byte[] each : entries.subList(1, entries.size())) {
            ArrayNode rows = segments.addArray();
            for (DelayedIndex index : segment(each).getIndexesList()) {
                rows.addArray().add(index.getTimestamp()).add(index.getLedgerId()).add(index.getEntryId());
            }
        }
        return node;
    }

    // Two generators made these classes: protobuf's up to 4.0, LightProto in 4.2. The bytes are the same.

    private static SnapshotMetadata metadata(byte[] entry) throws ReflectiveOperationException {
        Method parse = SnapshotMetadata.class.getMethod("parseFrom", byte[].class);
        if (Modifier.isStatic(parse.getModifiers())) {
            return (SnapshotMetadata) parse.invoke(null, entry);
        }
        SnapshotMetadata metadata = SnapshotMetadata.class.getConstructor().newInstance();
        parse.invoke(metadata, entry);
        return metadata;
    }

    private static Map<Long, ByteBuffer> bitmaps(SnapshotSegmentMetadata metadata) throws ReflectiveOperationException {
        Map<Long, ByteBuffer> found = new TreeMap<>();
        for (Method method : SnapshotSegmentMetadata.class.getMethods()) {
            if (method.getName().equals("getDelayedIndexBitMapMap")) {
                Map<Long, ByteString> all = (Map<Long, ByteString>) method.invoke(metadata);
                all.forEach((ledger, bitmap) -> found.put(ledger, bitmap.asReadOnlyByteBuffer()));
            } else if (method.getName().equals("forEachDelayedIndexBitMap")) {
                BiConsumer<Long, byte[]> keep = (ledger, bitmap) -> found.put(ledger, ByteBuffer.wrap(bitmap));
                method.invoke(metadata, keep);
            }
        }
        return found;
    }

    private static SnapshotSegment segment(byte[] entry) {
        SnapshotSegment segment = new SnapshotSegment();
        segment.parseFrom(Unpooled.wrappedBuffer(entry), entry.length);
        return segment;
    }

    private static ArrayNode entries(RoaringBitmap bitmap) {
        ArrayNode node = JSON.createArrayNode();
        bitmap.forEach((int entry) -> node.add(Integer.toUnsignedLong(entry)));
        return node;
    }

    private static ArrayNode queue(TripleLongPriorityQueue queue) throws Exception {
        Object array = field(queue, "array");
        Method read = array.getClass().getMethod("readLong", long.class);
        List<long[]> rows = new ArrayList<>();
        for (long i = 0; i < queue.size(); i++) {
            rows.add(new long[] {
                (long) read.invoke(array, 3 * i), (long) read.invoke(array, 3 * i + 1), (long) read.invoke(array, 3 * i + 2)
            });
        }
        rows.sort(Comparator.<long[]>comparingLong(row -> row[0]).thenComparingLong(row -> row[1])
                .thenComparingLong(row -> row[2]));
        ArrayNode node = JSON.createArrayNode();
        rows.forEach(row -> node.addArray().add(row[0]).add(row[1]).add(row[2]));
        return node;
    }

    private static String key(String start, String end) {
        return PREFIX + "_" + start + "_" + end;
    }

    private static String bench(String[] words) throws Exception {
        LongBuffer rows = ByteBuffer.wrap(Files.readAllBytes(Path.of(words[2]))).order(ByteOrder.LITTLE_ENDIAN)
                .asLongBuffer();
        int count = Integer.parseInt(words[3]);
        int perPop = Integer.parseInt(words[4]);
        ArrayNode rounds = JSON.createArrayNode();
        for (int round = 0; round < Integer.parseInt(words[5]); round++) {
            BucketTracker fresh = new BucketTracker(List.of(words).subList(5, words.length).toArray(new String[0]));
            DelayedDeliveryTracker tracker = words[1].equals("bucket") ? fresh.tracker
                    : new InMemoryDelayedDeliveryTracker(
                            fresh.dispatcher(), fresh.timer, fresh.tickMs, fresh.clock, fresh.strict, 0);
            long begin = processorTime();
            for (int i = 0; i < 3 * count; i += 3) {
                tracker.addMessage(rows.get(i), rows.get(i + 1), rows.get(i + 2));
            }
            long added = processorTime();
            long bytes = tracker.getBufferMemoryUsage();
            long held = tracker.getNumberOfDelayedMessages();
            long loaded = tracker != fresh.tracker ? held : fresh.tracker.getSharedBucketPriorityQueue().size()
                    + ((TripleLongPriorityQueue) field(GET_MUTABLE.invoke(tracker), "priorityQueue")).size();
            fresh.clock.millis = Long.MAX_VALUE / 2;
            long popping = processorTime();
            long popped = 0;
            for (int found = 1; found > 0; popped += found) {
                found = tracker.getScheduledMessages(perPop).size();
            }
            long end = processorTime();
            rounds.addObject().put("addNanoseconds", added - begin).put("popNanoseconds", end - popping)
                    .put("bytes", bytes).put("held", held).put("loaded", loaded).put("popped", popped)
                    .put("snapshotBytes", fresh.storage.written);
            tracker.close();
        }
        return rounds.toString();
    }

    private static long processorTime() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    private static Object field(Object of, String name) throws Exception {
        String place = of.getClass().getName() + "." + name;
        Field found = FIELDS.get(place);
        for (Class<?> each = of.getClass(); found == null; each = each.getSuperclass()) {
            for (Field field : each.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    FIELDS.put(place, field);
                    found = field;
                }
            }
        }
        return found.get(of);
    }

    private static final Map<String, Field> FIELDS = new HashMap<>();
    private static final Unsafe UNSAFE;
    private static final Method GET_BUCKETS;
    private static final Method GET_MUTABLE;

    static {
        try {
            Field unsafe = Unsafe.class.getDeclaredField("theUnsafe");
            unsafe.setAccessible(true);
            UNSAFE = (Unsafe) unsafe.get(null);
            // What they return is not public.
            GET_BUCKETS = BucketDelayedDeliveryTracker.class.getMethod("getImmutableBuckets");
            GET_MUTABLE = BucketDelayedDeliveryTracker.class.getMethod("getLastMutableBucket");
        } catch (ReflectiveOperationException error) {
            throw new ExceptionInInitializerError(error);
        }
    }

    /** A dispatcher that never reads; its constructor, which wants a broker, never runs. */
    private static final class Idle extends PersistentDispatcherMultipleConsumers {
        private ManagedCursor kept;

        private Idle() {
            super(null, null, null);
        }

        @Override
        public String getName() {
            return "persistent://public/default/topic / " + CURSOR;
        }

        @Override
        public ManagedCursor getCursor() {
            return kept;
        }

        @Override
        public void readMoreEntriesAsync() {
        }
    }

    /** Entries by ledger, with every byte as BookKeeper would keep it. */
    private static final class Storage implements BucketSnapshotStorage {
        private final Map<Long, List<byte[]>> ledgers = new TreeMap<>();
        private final Map<String, Integer> failures = new HashMap<>();
        private long next = 1;
        private long written;

        private long keep(List<byte[]> entries) {
            ledgers.put(next, entries);
            return next++;
        }

        private <T> CompletableFuture<T> now(String operation, Supplier<T> work) {
            if (failures.merge(operation, -1, Integer::sum) >= 0) {
                return CompletableFuture.failedFuture(new BucketSnapshotPersistenceException("as told"));
            }
            failures.remove(operation);
            try {
                return CompletableFuture.completedFuture(work.get());
            } catch (RuntimeException error) {
                return CompletableFuture.failedFuture(error);
            }
        }

        private List<byte[]> entries(long id) {
            List<byte[]> entries = ledgers.get(id);
            if (entries == null) {
                throw new IllegalStateException("no ledger " + id);
            }
            return entries;
        }

        @Override
        public CompletableFuture<Long> createBucketSnapshot(SnapshotMetadata metadata, List<SnapshotSegment> segments,
                String bucketKey, String topicName, String cursorName) {
            return now("create", () -> {
                List<byte[]> entries = new ArrayList<>();
                entries.add(metadata.toByteArray());
                segments.forEach(each -> entries.add(each.toByteArray()));
                entries.forEach(each -> written += each.length);
                return keep(entries);
            });
        }

        @Override
        public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long id) {
            return now("metadata", () -> {
                try {
                    return metadata(entries(id).get(0));
                } catch (ReflectiveOperationException error) {
                    throw new IllegalStateException(error);
                }
            });
        }

        @Override
        public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(long id, long first, long last) {
            return now("segment", () -> {
                List<SnapshotSegment> segments = new ArrayList<>();
                entries(id).subList((int) first, (int) last + 1).forEach(each -> segments.add(segment(each)));
                return segments;
            });
        }

        @Override
        public CompletableFuture<Long> getBucketSnapshotLength(long id) {
            return now("length", () -> entries(id).stream().mapToLong(each -> each.length).sum());
        }

        @Override
        public CompletableFuture<Void> deleteBucketSnapshot(long id) {
            return now("delete", () -> {
                ledgers.remove(id);
                return null;
            });
        }

        @Override
        public void start() {
        }

        @Override
        public void close() {
        }
    }

    private static final class ManualClock extends Clock {
        private long millis;

        @Override
        public long millis() {
            return millis;
        }

        @Override
        public Instant instant() {
            return Instant.ofEpochMilli(millis);
        }

        @Override
        public ZoneId getZone() {
            return ZoneOffset.UTC;
        }

        @Override
        public Clock withZone(ZoneId zone) {
            return this;
        }
    }

    /** Nothing it is given ever runs. */
    private static final class ManualTimer implements Timer {
        @Override
        public Timeout newTimeout(TimerTask task, long delay, TimeUnit unit) {
            return new Timeout() {
                private boolean cancelled;

                @Override
                public Timer timer() {
                    return ManualTimer.this;
                }

                @Override
                public TimerTask task() {
                    return task;
                }

                @Override
                public boolean isExpired() {
                    return false;
                }

                @Override
                public boolean isCancelled() {
                    return cancelled;
                }

                @Override
                public boolean cancel() {
                    cancelled = true;
                    return true;
                }
            };
        }

        @Override
        public Set<Timeout> stop() {
            return Set.of();
        }
    }
}
