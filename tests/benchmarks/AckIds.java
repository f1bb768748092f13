import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MessageIdImpl;

/**
 * Acknowledges messages by their ids, each for itself, with receipts: Pulsar's Java client as the benchmark's peer.
 *
 * A line "topic subscription file" names a file with a line "ledger entry" for each message; the answer is how many
 * nanoseconds it took until every acknowledgement was confirmed. A line "one topic subscription file" acknowledges one
 * after the other instead, and answers every latency in microseconds. A fourth word is a topic in which a record of each
 * is stored before it is acknowledged, as whoever wants to put back what a broker forgot has to.
 */
public class AckIds {
    private static final byte[] RECORD = new byte[80];

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] words = line.split(" ");
                boolean single = words[0].equals("one");
                int first = single ? 1 : 0;
                boolean logged = words.length > first + 3;
                try (Consumer<byte[]> consumer = client.newConsumer().topic(words[first])
                                .subscriptionName(words[first + 1]).subscriptionType(SubscriptionType.Shared)
                                .isAckReceiptEnabled(true).receiverQueueSize(1)
                                .acknowledgmentGroupTime(single ? 0 : 10, TimeUnit.MILLISECONDS).subscribe();
                        Producer<byte[]> log = logged ? client.newProducer().topic(words[first + 3])
                                .enableBatching(!single).blockIfQueueFull(true).create() : null) {
                    List<MessageId> ids = new ArrayList<>();
                    for (String id : java.nio.file.Files.readAllLines(java.nio.file.Path.of(words[first + 2]))) {
                        String[] numbers = id.split(" ");
                        ids.add(new MessageIdImpl(Long.parseLong(numbers[0]), Long.parseLong(numbers[1]), -1));
                    }
                    System.out.println(single ? oneByOne(consumer, log, ids) : Long.toString(all(consumer, log, ids)));
                }
            }
        }
    }

    private static CompletableFuture<MessageId> record(Producer<byte[]> log, MessageId id) {
        return log.newMessage().key(id.toString()).value(RECORD).sendAsync();
    }

    private static long all(Consumer<byte[]> consumer, Producer<byte[]> log, List<MessageId> ids) throws Exception {
        long begin = System.nanoTime();
        if (log != null) {
            List<CompletableFuture<MessageId>> stored = new ArrayList<>(ids.size());
            for (MessageId id : ids) {
                stored.add(record(log, id));
            }
            CompletableFuture.allOf(stored.toArray(new CompletableFuture[0])).get(120, TimeUnit.SECONDS);
        }
        List<CompletableFuture<Void>> confirmed = new ArrayList<>(ids.size());
        for (MessageId id : ids) {
            confirmed.add(consumer.acknowledgeAsync(id));
        }
        CompletableFuture.allOf(confirmed.toArray(new CompletableFuture[0])).get(120, TimeUnit.SECONDS);
        return System.nanoTime() - begin;
    }

    private static String oneByOne(Consumer<byte[]> consumer, Producer<byte[]> log, List<MessageId> ids)
            throws Exception {
        StringBuilder latencies = new StringBuilder();
        for (MessageId id : ids) {
            long begin = System.nanoTime();
            if (log != null) {
                record(log, id).get(30, TimeUnit.SECONDS);
            }
            consumer.acknowledgeAsync(id).get(30, TimeUnit.SECONDS);
            latencies.append((System.nanoTime() - begin) / 1000).append(' ');
        }
        return latencies.toString().trim();
    }
}
