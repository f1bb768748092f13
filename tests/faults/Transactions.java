import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Produces and acknowledges in transactions: a line with a topic and a subscription in, a line "done" out. The line
 * "commit" commits the one that was left open.
 */
public final class Transactions {
    private static final int COUNT = 4;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            Transaction open = null;
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.equals("commit")) {
                    open.commit().get();
                } else {
                    String[] words = line.split(" ");
                    open = run(client, words[0], words[1]);
                }
                answers.println("done");
                answers.flush();
            }
        }
    }

    /** One is committed, one aborted, one committed, and one stays open. */
    private static Transaction run(PulsarClient client, String topic, String subscription) throws Exception {
        Transaction transaction = null;
        try (Producer<byte[]> producer = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(subscription)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int number = 0; number < COUNT; number++) {
                producer.newMessage().value("plain".getBytes(StandardCharsets.UTF_8)).send();
                transaction =
                        client.newTransaction().withTransactionTimeout(1, TimeUnit.HOURS).build().get();
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
                producer.newMessage(transaction).value("in it".getBytes(StandardCharsets.UTF_8)).send();
                if (number == 1) {
                    transaction.abort().get();
                } else if (number < COUNT - 1) {
                    transaction.commit().get();
                }
            }
        }
        return transaction;
    }
}
