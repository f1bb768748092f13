import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Pulsar's own Java client, told what to do by lines of JSON: one answer on the standard output for each line.
 *
 * <p>It decides nothing. What a retry carries, when it is due and where it goes is what {@code enableRetry} and
 * {@code DeadLetterPolicy} make of it. The client's log goes to the standard error.
 */
public final class JavaClient {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final PulsarClient client;
    private final Map<String, Message<byte[]>> received = new HashMap<>();
    private Consumer<byte[]> consumer;

    private JavaClient(PulsarClient client) {
        this.client = client;
    }

    /** Takes the brokers' service URL; ends when the standard input does. */
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                BufferedReader lines =
                        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            JavaClient self = new JavaClient(client);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.write((self.answer(JSON.readTree(line)) + "\n").getBytes(StandardCharsets.UTF_8));
                answers.flush();
            }
            self.leave();
        }
    }

    private ObjectNode answer(JsonNode call) {
        try {
            return obey(call);
        } catch (Exception error) {
            error.printStackTrace();
            return JSON.createObjectNode().put("error", error.toString());
        }
    }

    private ObjectNode obey(JsonNode call) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        switch (call.get("do").asText()) {
            case "subscribe" -> subscribe(call);
            case "receive" -> answer.set("message", receive(call.get("timeoutMs").asInt()));
            case "reconsumeLater" ->
                    consumer.reconsumeLater(taken(call), call.get("delayMs").asLong(), TimeUnit.MILLISECONDS);
            case "negativeAcknowledge" -> consumer.negativeAcknowledge(taken(call));
            case "leave" -> leave();
            case "send" -> answer.set("messageIds", send(call));
            case "partitionsOf" -> answer.set("partitions", partitionsOf(call));
            case "readAll" -> answer.set("messages", readAll(call.get("topic").asText()));
            default -> throw new IllegalArgumentException("unknown: " + call);
        }
        return answer;
    }

    private void subscribe(JsonNode call) throws Exception {
        consumer = client.newConsumer()
                .topic(call.get("topic").asText())
                .subscriptionName(call.get("subscription").asText())
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Latest)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder()
                        .maxRedeliverCount(call.get("maxRedeliverCount").asInt())
                        .retryLetterTopic(call.get("retryLetterTopic").asText())
                        .deadLetterTopic(call.get("deadLetterTopic").asText())
                        .build())
                .subscribe();
    }

    private JsonNode receive(int timeoutMs) throws Exception {
        Message<byte[]> message = consumer.receive(timeoutMs, TimeUnit.MILLISECONDS);
        if (message == null) {
            return JSON.nullNode();
        }
        received.put(message.getMessageId().toString(), message);
        return document(message);
    }

    private Message<byte[]> taken(JsonNode call) {
        return received.remove(call.get("messageId").asText());
    }

    private void leave() throws Exception {
        if (consumer != null) {
            consumer.close();
            consumer = null;
            received.clear();
        }
    }

    /** All payloads in one batch, or each in an entry of its own. */
    private ArrayNode send(JsonNode call) throws Exception {
        ArrayNode ids = JSON.createArrayNode();
        JsonNode payloads = call.get("payloads");
        try (Producer<byte[]> producer = client.newProducer()
                .topic(call.get("topic").asText())
                .enableBatching(call.get("batching").asBoolean())
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES)
                .batchingMaxMessages(payloads.size() + 1)
                .create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (JsonNode payload : payloads) {
                TypedMessageBuilder<byte[]> message =
                        producer.newMessage().value(payload.asText().getBytes(StandardCharsets.UTF_8));
                call.get("properties").fields()
                        .forEachRemaining(each -> message.property(each.getKey(), each.getValue().asText()));
                if (call.hasNonNull("key")) {
                    message.key(call.get("key").asText());
                }
                if (call.hasNonNull("eventTimeMs")) {
                    message.eventTime(call.get("eventTimeMs").asLong());
                }
                sent.add(message.sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                ids.add(each.get().toString());
            }
        }
        return ids;
    }

    /** Publishes one message under each key; the partitions that they went to. */
    private ArrayNode partitionsOf(JsonNode call) throws Exception {
        ArrayNode partitions = JSON.createArrayNode();
        try (Producer<byte[]> producer = client.newProducer()
                .topic(call.get("topic").asText())
                .hashingScheme(HashingScheme.valueOf(call.get("hashingScheme").asText()))
                .enableBatching(false)
                .create()) {
            for (JsonNode key : call.get("keys")) {
                MessageId id = producer.newMessage().key(key.asText()).value(new byte[0]).send();
                partitions.add(((MessageIdAdv) id).getPartitionIndex());
            }
        }
        return partitions;
    }

    private ArrayNode readAll(String topic) throws Exception {
        ArrayNode messages = JSON.createArrayNode();
        try (Reader<byte[]> reader =
                client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                messages.add(document(reader.readNext()));
            }
        }
        return messages;
    }

    private static ObjectNode document(Message<byte[]> message) {
        ObjectNode document = JSON.createObjectNode()
                .put("messageId", message.getMessageId().toString())
                .put("topic", message.getTopicName())
                .put("payload", new String(message.getData(), StandardCharsets.UTF_8))
                .put("key", message.hasKey() ? message.getKey() : null)
                .put("orderingKey", message.hasOrderingKey()
                        ? new String(message.getOrderingKey(), StandardCharsets.UTF_8) : null)
                .put("eventTimeMs", message.getEventTime())
                .put("redeliveryCount", message.getRedeliveryCount());
        ObjectNode properties = document.putObject("properties");
        message.getProperties().forEach(properties::put);
        return document;
    }
}
