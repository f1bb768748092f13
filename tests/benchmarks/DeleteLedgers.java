import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Deletes ledgers as brokers do: BookKeeper's client, {@code asyncDeleteLedger}, a window of calls on their way.
 *
 * <p>Arguments: the metadata service URI, the window. Each line of standard input, "FIRST COUNT", is answered with the
 * nanoseconds that deleting those ledgers took and the number that failed.
 */
public class DeleteLedgers {
    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        int window = Integer.parseInt(arguments[1]);
        try (BookKeeper client = new BookKeeper(configuration)) {
            System.out.println("ready");
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                System.out.println(delete(client, Long.parseLong(words[0]), Integer.parseInt(words[1]), window));
            }
        }
    }

    private static String delete(BookKeeper client, long first, int count, int window) throws InterruptedException {
        Semaphore free = new Semaphore(window);
        AtomicInteger failed = new AtomicInteger();
        long started = System.nanoTime();
        for (long ledgerId = first; ledgerId < first + count; ledgerId++) {
            free.acquire();
            client.asyncDeleteLedger(ledgerId, (code, context) -> {
                if (code != BKException.Code.OK) {
                    failed.incrementAndGet();
                }
                free.release();
            }, null);
        }
        free.acquire(window);
        return (System.nanoTime() - started) + " " + failed.get();
    }
}
