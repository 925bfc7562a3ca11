package peers;

import java.nio.file.Path;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.activemq.artemis.api.core.TransportConfiguration;
import org.apache.activemq.artemis.core.config.Configuration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.config.impl.SecurityConfiguration;
import org.apache.activemq.artemis.core.security.Role;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager;
import org.apache.activemq.artemis.spi.core.security.jaas.InVMLoginModule;

/**
 * Artemis with its journal in a folder and AMQP on a port: `Artemis PORT FOLDER`. It prints "ready" and runs until a
 * signal. Addresses and queues are made when first used, as after `artemis create`; the journal is small so that it is
 * there at once.
 */
public final class Artemis {
    private static final String FACTORY =
        "org.apache.activemq.artemis.core.remoting.impl.netty.NettyAcceptorFactory";

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        Path folder = Path.of(arguments[1]);
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfiguration(configuration(port, folder));
        broker.setSecurityManager(users());
        broker.start();
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(broker, ended)));
        System.out.println("ready");
        ended.await();
    }

    private static Configuration configuration(int port, Path folder) throws Exception {
        var acceptor = new TransportConfiguration(FACTORY, java.util.Map.of(
            "host", "127.0.0.1", "port", port, "protocols", "AMQP", "useEpoll", false));
        var everything = new Role("all", true, true, true, true, true, true, true, true, true, true);
        return new ConfigurationImpl()
            .setName("artemis")
            .setBindingsDirectory(folder.resolve("bindings").toString())
            .setJournalDirectory(folder.resolve("journal").toString())
            .setPagingDirectory(folder.resolve("paging").toString())
            .setLargeMessagesDirectory(folder.resolve("large").toString())
            .setJournalType(JournalType.NIO)
            .setJournalFileSize(1 << 20)
            .setJournalMinFiles(2)
            .setMaxDiskUsage(-1)
            .setJMXManagementEnabled(false)
            .setGracefulShutdownEnabled(false)
            .addAcceptorConfiguration(acceptor)
            .putSecurityRoles("#", Set.of(everything));
    }

    private static ActiveMQJAASSecurityManager users() {
        var known = new SecurityConfiguration();
        known.addUser("guest", "guest");
        known.addRole("guest", "all");
        return new ActiveMQJAASSecurityManager(InVMLoginModule.class.getName(), known);
    }

    private static void stop(EmbeddedActiveMQ broker, CountDownLatch ended) {
        try {
            broker.stop();
        } catch (Exception error) {
            error.printStackTrace();
        }
        ended.countDown();
    }
}
