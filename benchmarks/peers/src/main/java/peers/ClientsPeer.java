package peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache's own client as a writer of fenced snapshots: a transaction for each batch, with the group's
 * offset in it. It is told on the standard input, one command a line:
 *
 * <pre>
 *   open INPUT STATE GROUP default|tuned       answered by "opened"
 *   write RECORDS BYTES CAP records|offsets    answered by "done NANOSECONDS"
 *   close                                      answered by "closed"
 * </pre>
 *
 * CAP is how many records a transaction has at most, and the last word is what is sent first.
 */
public final class ClientsPeer {

    private static final byte[][] VALUES = new byte[64][];

    private ClientsPeer() {}

    public static void main(String[] args) throws Exception {
        String brokers = args[0];
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        KafkaConsumer<byte[], byte[]> consumer = null;
        KafkaProducer<byte[], byte[]> producer = null;
        TopicPartition input = null;
        String state = null;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "open" -> {
                    input = new TopicPartition(words[1], 0);
                    state = words[2];
                    consumer = consumer(brokers, words[3]);
                    consumer.subscribe(List.of(input.topic()));
                    while (consumer.assignment().isEmpty()) {
                        consumer.poll(Duration.ofMillis(50));
                    }
                    producer = producer(brokers, words[3], words[4].equals("tuned"));
                    producer.initTransactions();
                    say("opened");
                }
                case "write" -> say("done " + write(producer, consumer, input, state, Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                    Integer.parseInt(words[3]), words[4].equals("offsets")));
                case "close" -> {
                    producer.close();
                    consumer.close();
                    say("closed");
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }

    private static long write(KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer, TopicPartition input, String state,
            int records, int bytes, int cap, boolean offsetsFirst) {
        Random random = new Random(1);
        for (int i = 0; i < VALUES.length; i++) {
            VALUES[i] = new byte[bytes];
            random.nextBytes(VALUES[i]);
        }
        var offsets = Map.of(input, new OffsetAndMetadata(0));
        long began = System.nanoTime();
        for (int done = 0; done < records; ) {
            producer.beginTransaction();
            if (offsetsFirst) {
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            }
            for (int end = Math.min(done + cap, records); done < end; done++) {
                producer.send(new ProducerRecord<>(state, 0, ("key-" + done).getBytes(), VALUES[done % VALUES.length]));
            }
            if (!offsetsFirst) {
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            }
            producer.commitTransaction(); // which fails if a record did
        }
        return System.nanoTime() - began;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String brokers, String group) {
        Properties p = new Properties();
        p.put("bootstrap.servers", brokers);
        p.put("group.id", group);
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        p.put("key.deserializer", ByteArrayDeserializer.class);
        p.put("value.deserializer", ByteArrayDeserializer.class);
        return new KafkaConsumer<>(p);
    }

    private static KafkaProducer<byte[], byte[]> producer(String brokers, String group, boolean tuned) {
        Properties p = new Properties();
        p.put("bootstrap.servers", brokers);
        p.put("transactional.id", group);
        p.put("key.serializer", ByteArraySerializer.class);
        p.put("value.serializer", ByteArraySerializer.class);
        if (tuned) {
            p.put("retry.backoff.ms", 1); // it meets CONCURRENT_TRANSACTIONS, and waits 100 ms by default
            p.put("retry.backoff.max.ms", 10);
            p.put("batch.size", 1 << 20);
            p.put("linger.ms", 0);
            p.put("buffer.memory", 256L << 20);
            p.put("max.request.size", 16 << 20);
        }
        return new KafkaProducer<>(p);
    }
}
