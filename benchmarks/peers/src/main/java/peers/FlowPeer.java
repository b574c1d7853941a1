package peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams as the peer of a flow: a fold per key in one in-memory store with its changelog,
 * exactly_once_v2. It is told on the standard input, one command a line, so that the virtual machine
 * stays warm over the rounds:
 *
 * <pre>
 *   start APPLICATION INPUT COMMIT_MS THREADS stock|tuned     answered by "first" at the first record
 *   stop                                                      answered by "stopped"
 * </pre>
 *
 * The state is what the flow's is: eight bytes that count the key's events, and the rest of the last
 * one.
 */
public final class FlowPeer {

    private static final String STORE = "store";

    private FlowPeer() {}

    public static void main(String[] args) throws Exception {
        String brokers = args[0];
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        KafkaStreams streams = null;
        Path dir = null;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "start" -> {
                    dir = Files.createTempDirectory("flow-peer-");
                    streams = new KafkaStreams(topology(words[2], words[5].equals("tuned")), settings(brokers, words, dir));
                    streams.setUncaughtExceptionHandler(e -> {
                        e.printStackTrace();
                        System.exit(1);
                        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                    });
                    streams.start();
                }
                case "stop" -> {
                    streams.close(Duration.ofMinutes(1));
                    streams.cleanUp();
                    Files.deleteIfExists(dir);
                    say("stopped");
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static synchronized void say(String word) {
        System.out.println(word);
        System.out.flush();
    }

    private static Topology topology(String input, boolean tuned) {
        var store = Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(STORE), Serdes.ByteArray(), Serdes.ByteArray())
            .withLoggingEnabled(Map.of("cleanup.policy", "compact"));
        if (tuned) {
            store = store.withCachingEnabled(); // a key's changes between two commits become one
        }
        AtomicBoolean first = new AtomicBoolean();
        Topology t = new Topology();
        t.addSource("events", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), input);
        t.addProcessor("fold", () -> new Fold(first), "events");
        t.addStateStore(store, "fold");
        return t;
    }

    private static Properties settings(String brokers, String[] words, Path dir) {
        Properties p = new Properties();
        p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, brokers);
        p.put(StreamsConfig.APPLICATION_ID_CONFIG, words[1]);
        p.put(StreamsConfig.STATE_DIR_CONFIG, dir.toString());
        p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, Integer.parseInt(words[3]));
        p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, Integer.parseInt(words[4]));
        p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, -1);
        p.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        p.put("enable.metrics.push", "false");
        if (words[5].equals("tuned")) {
            p.put(StreamsConfig.producerPrefix("batch.size"), 1 << 20);
            p.put(StreamsConfig.producerPrefix("linger.ms"), 5);
            p.put(StreamsConfig.producerPrefix("buffer.memory"), 128L << 20);
            p.put(StreamsConfig.consumerPrefix("max.poll.records"), 10_000);
            p.put(StreamsConfig.consumerPrefix("fetch.max.bytes"), 64 << 20);
            p.put(StreamsConfig.consumerPrefix("max.partition.fetch.bytes"), 16 << 20);
            p.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 20_000);
            p.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L << 20);
        }
        return p;
    }

    private static final class Fold implements Processor<byte[], byte[], Void, Void> {
        private final AtomicBoolean first;
        private KeyValueStore<byte[], byte[]> store;

        Fold(AtomicBoolean first) {
            this.first = first;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            store = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> event) {
            if (first.compareAndSet(false, true)) {
                say("first");
            }
            byte[] before = store.get(event.key());
            byte[] after = event.value().clone();
            ByteBuffer.wrap(after).putLong(before == null ? 1 : ByteBuffer.wrap(before).getLong() + 1);
            store.put(event.key(), after);
        }
    }
}
