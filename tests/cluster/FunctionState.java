import static java.nio.charset.StandardCharsets.UTF_8;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.api.StorageClient;
import org.apache.bookkeeper.api.kv.Table;
import org.apache.bookkeeper.clients.StorageClientBuilder;
import org.apache.bookkeeper.clients.admin.StorageAdminClient;
import org.apache.bookkeeper.clients.config.StorageClientSettings;
import org.apache.bookkeeper.common.component.LifecycleComponent;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.stream.proto.NamespaceConfiguration;
import org.apache.bookkeeper.stream.proto.StorageType;
import org.apache.bookkeeper.stream.proto.StreamConfiguration;
import org.apache.bookkeeper.stream.protocol.ProtocolConstants;
import org.apache.bookkeeper.stream.server.StorageServer;
import org.apache.commons.configuration2.CompositeConfiguration;

/**
 * BookKeeper's stream storage, in which Pulsar keeps functions' state: a server of its own on the cluster's bookies.
 * A line "put KEY VALUE" or "get KEY" in, a line "done" or the value out.
 */
public final class FunctionState {
    private static final String TABLE = "counting";
    /** As long as the other clients of the tests (`OPERATION_SECONDS`). */
    private static final int WAIT_SECONDS = 120;

    public static void main(String[] arguments) {
        int status = 0;
        try {
            serve(arguments[0], "tenant_" + ProcessHandle.current().pid());
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        // The server's threads would live on.
        System.exit(status);
    }

    private static void serve(String zooKeeper, String namespace) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        int port = freePort();
        LifecycleComponent server = StorageServer.buildStorageServer(
                configuration(zooKeeper, port), port, false, false, NullStatsLogger.INSTANCE);
        server.start();
        try {
            answer(answers, StorageClientSettings.newBuilder().serviceUri("bk://127.0.0.1:" + port).build(), namespace);
        } finally {
            // Otherwise clients are sent to this server until its session is over.
            server.close();
        }
    }

    private static void answer(PrintStream answers, StorageClientSettings settings, String namespace)
            throws Exception {
        makeTable(settings, namespace);
        StorageClientBuilder builder =
                StorageClientBuilder.newBuilder().withSettings(settings).withNamespace(namespace);
        try (StorageClient client = builder.build();
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8))) {
            Table<ByteBuf, ByteBuf> table = client.openTable(TABLE).get(WAIT_SECONDS, TimeUnit.SECONDS);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(answer(table, line.split(" ")));
                answers.flush();
            }
        }
    }

    private static String answer(Table<ByteBuf, ByteBuf> table, String[] words) throws Exception {
        if (words[0].equals("put")) {
            table.put(bytes(words[1]), bytes(words[2])).get(WAIT_SECONDS, TimeUnit.SECONDS);
            return "done";
        }
        return table.get(bytes(words[1])).get(WAIT_SECONDS, TimeUnit.SECONDS).toString(UTF_8);
    }

    /** As the functions' worker does it: a namespace, and a table in it. */
    private static void makeTable(StorageClientSettings settings, String name) throws Exception {
        StreamConfiguration table = StreamConfiguration.newBuilder(ProtocolConstants.DEFAULT_STREAM_CONF)
                .setInitialNumRanges(1)
                .setMinNumRanges(1)
                .setStorageType(StorageType.TABLE)
                .build();
        NamespaceConfiguration namespace =
                NamespaceConfiguration.newBuilder().setDefaultStreamConf(table).build();
        try (StorageAdminClient admin = StorageClientBuilder.newBuilder().withSettings(settings).buildAdmin()) {
            admin.createNamespace(name, namespace).get(WAIT_SECONDS, TimeUnit.SECONDS);
            admin.createStream(name, TABLE, table).get(WAIT_SECONDS, TimeUnit.SECONDS);
        }
    }

    private static CompositeConfiguration configuration(String zooKeeper, int port) throws Exception {
        CompositeConfiguration conf = new CompositeConfiguration();
        Path ranges = Files.createTempDirectory(Path.of("."), "ranges");
        Map.of(
                "metadataServiceUri", "zk+hierarchical://" + zooKeeper + "/ledgers",
                "zkServers", zooKeeper,
                "storage.range.store.dirs", ranges.toString(),
                "storageserver.grpc.port", port,
                "dlog.bkcEnsembleSize", 1,
                "dlog.bkcWriteQuorumSize", 1,
                "dlog.bkcAckQuorumSize", 1)
                .forEach(conf::setProperty);
        return conf;
    }

    private static int freePort() throws Exception {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    private static ByteBuf bytes(String text) {
        return Unpooled.wrappedBuffer(text.getBytes(UTF_8));
    }
}
