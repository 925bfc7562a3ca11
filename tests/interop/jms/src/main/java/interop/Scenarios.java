// Scenarios of Apache Qpid JMS, each one a small program that ends with "ok" or a stack trace.
//
// Owns what a Java application does through the standard interface: sessions, selectors, topics, transactions, temporary
// queues, browsers. In come host, port, the scenario and the name of an empty queue that the caller made; out comes one
// line and an exit code. It must not know which broker it talks to. Rules: Jakarta Messaging 3.1, and the JMS mapping of
// AMQP 1.0 that the library implements.
package interop;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

public final class Scenarios {
    private static final long WAIT_MS = 10_000;

    private interface Scenario {
        void run(Connection connection, String queue) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = Map.ofEntries(
            Map.entry("send_and_receive", Scenarios::sendAndReceive),
            Map.entry("selectors_choose", Scenarios::selectorsChoose),
            Map.entry("topics_copy", Scenarios::topicsCopy),
            Map.entry("durable_subscriptions_wait", Scenarios::durableSubscriptionsWait),
            Map.entry("transactions_commit_and_roll_back", Scenarios::transactionsCommitAndRollBack),
            Map.entry("temporary_queues_carry_replies", Scenarios::temporaryQueuesCarryReplies),
            Map.entry("browsers_leave_messages", Scenarios::browsersLeaveMessages),
            Map.entry("client_acknowledge_recovers", Scenarios::clientAcknowledgeRecovers),
            Map.entry("priority_and_expiry_are_kept", Scenarios::priorityAndExpiryAreKept),
            Map.entry("listeners_and_completions_are_called", Scenarios::listenersAndCompletionsAreCalled),
            Map.entry("large_messages_arrive", Scenarios::largeMessagesArrive));

    private Scenarios() {
    }

    public static void main(String[] arguments) {
        String url = "amqp://" + arguments[0] + ":" + arguments[1] + "?jms.clientID=" + arguments[3]
                + "-client&jms.deserializationPolicy.allowList=java.util"
                + (arguments.length > 4 ? "&amqp.saslMechanisms=" + arguments[4] : "");
        int code = 1;
        try (Connection connection = new JmsConnectionFactory("guest", "guest", url).createConnection()) {
            connection.start();
            SCENARIOS.get(arguments[2]).run(connection, arguments[3]);
            code = 0;
            System.out.println("ok");
        } catch (Throwable failure) {
            failure.printStackTrace(System.out);
        }
        System.exit(code);
    }

    private static void check(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    private static String text(MessageConsumer consumer) throws Exception {
        Message message = consumer.receive(WAIT_MS);
        if (message == null) {
            throw new AssertionError("no message in time");
        }
        return ((TextMessage) message).getText();
    }

    private static void send(Session session, Queue queue, String... texts) throws Exception {
        try (MessageProducer producer = session.createProducer(queue)) {
            for (String text : texts) {
                producer.send(session.createTextMessage(text));
            }
        }
    }

    private static void sendAndReceive(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        MessageProducer producer = session.createProducer(queue);
        TextMessage text = session.createTextMessage("grüße");
        text.setStringProperty("colour", "blue");
        text.setLongProperty("weight", 7L);
        text.setBooleanProperty("ripe", true);
        text.setJMSCorrelationID("c-1");
        text.setJMSType("fruit");
        producer.send(text);
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, 1, -1});
        producer.send(bytes);
        MapMessage map = session.createMapMessage();
        map.setInt("number", 42);
        producer.send(map);
        StreamMessage stream = session.createStreamMessage();
        stream.writeString("item");
        producer.send(stream);
        producer.send(session.createObjectMessage(new ArrayList<>(List.of("a", "b"))));
        MessageConsumer consumer = session.createConsumer(queue);
        TextMessage got = (TextMessage) consumer.receive(WAIT_MS);
        check("grüße", got.getText());
        check("blue", got.getStringProperty("colour"));
        check(7L, got.getLongProperty("weight"));
        check(true, got.getBooleanProperty("ripe"));
        check("c-1", got.getJMSCorrelationID());
        check("fruit", got.getJMSType());
        check(text.getJMSMessageID(), got.getJMSMessageID());
        check(text.getJMSTimestamp(), got.getJMSTimestamp());
        check(3L, ((BytesMessage) consumer.receive(WAIT_MS)).getBodyLength());
        check(42, ((MapMessage) consumer.receive(WAIT_MS)).getInt("number"));
        check("item", ((StreamMessage) consumer.receive(WAIT_MS)).readString());
        check(List.of("a", "b"), ((ObjectMessage) consumer.receive(WAIT_MS)).getObject());
        check(true, consumer.receiveNoWait() == null);
    }

    private static void selectorsChoose(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 10; number++) {
            TextMessage message = session.createTextMessage("m" + number);
            message.setIntProperty("number", number);
            message.setStringProperty("kind", number % 2 == 0 ? "even" : "odd");
            producer.send(message);
        }
        try (MessageConsumer odd = session.createConsumer(queue, "kind = 'odd' AND number > 4")) {
            check(List.of("m5", "m7", "m9"), List.of(text(odd), text(odd), text(odd)));
            check(true, odd.receiveNoWait() == null);
        }
        MessageConsumer rest = session.createConsumer(queue);
        for (String expected : List.of("m0", "m1", "m2", "m3", "m4", "m6", "m8")) {
            check(expected, text(rest));
        }
    }

    private static Topic topic(Session session, String key) throws Exception {
        return session.createTopic("/exchanges/amq.topic/" + key);
    }

    private static void topicsCopy(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        MessageConsumer first = session.createConsumer(topic(session, name));
        MessageConsumer second = session.createConsumer(topic(session, name));
        MessageConsumer other = session.createConsumer(topic(session, name + ".other"));
        MessageProducer producer = session.createProducer(topic(session, name));
        producer.send(session.createTextMessage("news"));
        check("news", text(first));
        check("news", text(second));
        check(true, other.receiveNoWait() == null);
    }

    private static void durableSubscriptionsWait(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Topic topic = topic(session, name);
        MessageProducer producer = session.createProducer(topic);
        session.createDurableConsumer(topic, name).close();
        producer.send(session.createTextMessage("while away"));
        MessageConsumer back = session.createDurableConsumer(topic, name);
        check("while away", text(back));
        back.close();
        session.unsubscribe(name);
    }

    private static void transactionsCommitAndRollBack(Connection connection, String name) throws Exception {
        Session plain = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Session transacted = connection.createSession(Session.SESSION_TRANSACTED);
        Queue queue = plain.createQueue(name);
        send(transacted, queue, "forgotten");
        transacted.rollback();
        send(transacted, queue, "kept 1", "kept 2");
        MessageConsumer watcher = plain.createConsumer(queue);
        check(true, watcher.receiveNoWait() == null);
        watcher.close();
        transacted.commit();
        MessageConsumer consumer = transacted.createConsumer(queue);
        check("kept 1", text(consumer));
        transacted.rollback();
        Message again = consumer.receive(WAIT_MS);
        check("kept 1", ((TextMessage) again).getText());
        check(true, again.getJMSRedelivered());
        check("kept 2", text(consumer));
        transacted.commit();
        check(true, consumer.receiveNoWait() == null);
    }

    private static void temporaryQueuesCarryReplies(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        MessageConsumer service = session.createConsumer(queue);
        Session asking = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        TemporaryQueue replies = asking.createTemporaryQueue();
        MessageConsumer answers = asking.createConsumer(replies);
        TextMessage request = asking.createTextMessage("ask");
        request.setJMSReplyTo(replies);
        try (MessageProducer producer = asking.createProducer(queue)) {
            producer.send(request);
        }
        Message received = service.receive(WAIT_MS);
        try (MessageProducer anonymous = session.createProducer(null)) {
            TextMessage answer = session.createTextMessage("answer");
            answer.setJMSCorrelationID(received.getJMSMessageID());
            anonymous.send(received.getJMSReplyTo(), answer);
        }
        Message answer = answers.receive(WAIT_MS);
        check("answer", ((TextMessage) answer).getText());
        check(request.getJMSMessageID(), answer.getJMSCorrelationID());
        answers.close();
        replies.delete();
    }

    private static void browsersLeaveMessages(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        send(session, queue, "1", "2", "3");
        try (QueueBrowser browser = session.createBrowser(queue)) {
            List<String> seen = new ArrayList<>();
            for (Object message : Collections.list(browser.getEnumeration())) {
                seen.add(((TextMessage) message).getText());
            }
            check(List.of("1", "2", "3"), seen);
        }
        MessageConsumer consumer = session.createConsumer(queue);
        check(List.of("1", "2", "3"), List.of(text(consumer), text(consumer), text(consumer)));
    }

    private static void clientAcknowledgeRecovers(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        send(session, queue, "1", "2", "3");
        MessageConsumer consumer = session.createConsumer(queue);
        Message first = consumer.receive(WAIT_MS);
        check(1, first.getIntProperty("JMSXDeliveryCount"));
        first.acknowledge();
        check("2", text(consumer));
        session.recover();
        Message second = consumer.receive(WAIT_MS);
        check("2", ((TextMessage) second).getText());
        check(true, second.getJMSRedelivered());
        check(2, second.getIntProperty("JMSXDeliveryCount"));
        Message third = consumer.receive(WAIT_MS);
        third.acknowledge();
        check(true, consumer.receiveNoWait() == null);
    }

    private static void priorityAndExpiryAreKept(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        try (MessageProducer producer = session.createProducer(queue)) {
            producer.send(session.createTextMessage("short"), DeliveryMode.NON_PERSISTENT, 4, 1);
            producer.send(session.createTextMessage("long"), DeliveryMode.PERSISTENT, 8, 60_000);
        }
        Thread.sleep(50); // the short one's millisecond passes
        MessageConsumer consumer = session.createConsumer(queue);
        Message message = consumer.receive(WAIT_MS);
        check("long", ((TextMessage) message).getText());
        check(8, message.getJMSPriority());
        check(DeliveryMode.PERSISTENT, message.getJMSDeliveryMode());
        check(true, message.getJMSExpiration() > System.currentTimeMillis());
    }

    private static void listenersAndCompletionsAreCalled(Connection connection, String name) throws Exception {
        Session receiving = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Session sending = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        CountDownLatch received = new CountDownLatch(100);
        CountDownLatch completed = new CountDownLatch(100);
        receiving.createConsumer(receiving.createQueue(name)).setMessageListener(message -> received.countDown());
        MessageProducer producer = sending.createProducer(sending.createQueue(name));
        for (int number = 0; number < 100; number++) {
            producer.send(sending.createTextMessage("m" + number), new Completion(completed));
        }
        check(true, completed.await(WAIT_MS, TimeUnit.MILLISECONDS));
        check(true, received.await(WAIT_MS, TimeUnit.MILLISECONDS));
    }

    private record Completion(CountDownLatch completed) implements jakarta.jms.CompletionListener {
        @Override
        public void onCompletion(Message message) {
            completed.countDown();
        }

        @Override
        public void onException(Message message, Exception failure) {
            failure.printStackTrace(System.out);
        }
    }

    private static void largeMessagesArrive(Connection connection, String name) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(name);
        String large = "x".repeat(2_000_000);
        send(session, queue, large);
        check(large, text(session.createConsumer(queue)));
    }
}
