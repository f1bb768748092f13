import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.Callable;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.AuthenticationFactory;

/**
 * What {@code bin/pulsar-admin} runs, and the Java admin client's calls that delete, many of them in one process.
 *
 * <p>One line of JSON in, one out. A command is answered with its exit code and all that it printed.
 */
public final class AdminCommands {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** As {@code PulsarAdminTool.main} does it, but for the end of the process. */
    private static final class Tool extends PulsarAdminTool {
        Tool(Properties properties) throws Exception {
            super(properties);
        }

        int exitCode(String[] arguments) {
            return run(arguments) ? 0 : 1;
        }
    }

    /** Ends when the standard input does. */
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonNode call = JSON.readTree(line);
                ObjectNode answer = call.has("command") ? command(call) : deletion(call);
                answers.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
                answers.flush();
            }
        }
        System.exit(0); // the admin clients' threads would keep the process
    }

    private static ObjectNode command(JsonNode call) throws Exception {
        Properties properties = new Properties();
        properties.put("webServiceUrl", call.get("url").asText());
        properties.put("authPlugin", "org.apache.pulsar.client.impl.auth.AuthenticationToken");
        properties.put("authParams", "token:" + call.get("token").asText());
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        PrintStream usualOutput = System.out;
        PrintStream usualErrors = System.err;
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        int exitCode;
        try {
            Tool tool = new Tool(properties);
            exitCode = tool.exitCode(JSON.convertValue(call.get("command"), String[].class));
            close(tool);
        } finally {
            System.setOut(usualOutput);
            System.setErr(usualErrors);
        }
        return JSON.createObjectNode()
                .put("exitCode", exitCode)
                .put("output", output.toString(StandardCharsets.UTF_8))
                .put("errors", errors.toString(StandardCharsets.UTF_8));
    }

    private static void close(Tool tool) {
        try {
            tool.getPulsarAdminSupplier().get().close();
        } catch (RuntimeException neverOpened) {
            // A command line that cannot be understood ends before there is a client.
        }
    }

    private static ObjectNode deletion(JsonNode call) throws Exception {
        String name = call.get("name").asText();
        boolean force = call.get("force").asBoolean();
        try (PulsarAdmin admin = PulsarAdmin.builder()
                .serviceHttpUrl(call.get("url").asText())
                .authentication(AuthenticationFactory.token(call.get("token").asText()))
                .build()) {
            return answer(() -> switch (call.get("deletion").asText()) {
                case "topic" -> run(() -> admin.topics().delete(name, force));
                case "topicWithItsSchema" -> run(() -> admin.topics().delete(name, force, true));
                case "topicLater" -> admin.topics().deleteAsync(name, force).get();
                case "partitionedTopic" -> run(() -> admin.topics().deletePartitionedTopic(name, force));
                case "partitionedTopicLater" -> admin.topics().deletePartitionedTopicAsync(name, force).get();
                case "namespace" -> run(() -> admin.namespaces().deleteNamespace(name, force));
                case "namespaceLater" -> admin.namespaces().deleteNamespaceAsync(name, force).get();
                case "schema" -> run(() -> admin.schemas().deleteSchema(name, force));
                case "tenant" -> run(() -> admin.tenants().deleteTenant(name, force));
                default -> throw new IllegalArgumentException(call.toString());
            });
        }
    }

    private interface Call {
        void run() throws Exception;
    }

    private static Void run(Call call) throws Exception {
        call.run();
        return null;
    }

    private static ObjectNode answer(Callable<Void> call) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            call.call();
            return answer.put("error", "").put("status", 0);
        } catch (Exception failure) {
            Throwable cause = failure.getCause() instanceof PulsarAdminException inner ? inner : failure;
            int status = cause instanceof PulsarAdminException refused ? refused.getStatusCode() : -1;
            return answer.put("error", cause.getClass().getSimpleName()).put("status", status);
        }
    }
}
