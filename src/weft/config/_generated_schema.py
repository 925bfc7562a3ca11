"""Generated from schema/management.json by tools/config_schema.py; edit the schema, then run that.

Owns the entities and attributes a configuration file may hold, as values of `weft.config.schema`.
It must never be edited by hand.
"""

from weft.config.schema import Attribute, Entity

# fmt: off
ENTITIES = (
    Entity(
        "node",
        "The node itself.",
        many=False,
        attributes=(
            Attribute("name", "string", "Name of the node: letters, digits, `.`, `_` and `-`. The default is the host's name. `--name` wins."),
            Attribute("data_dir", "string", "Folder that belongs to this node alone. The default is `$XDG_DATA_HOME/weft/NAME`, or `~/.local/share/weft/NAME`. `--data-dir` wins."),
        ),
    ),
    Entity(
        "listen",
        "Where the node listens; repeat the table for several. Without any it is `127.0.0.1:5672`. `--listen` replaces the whole list.",
        many=True,
        attributes=(
            Attribute("address", "string", "`HOST:PORT`, an IPv6 address in brackets. Port 0 takes a free one; without a port it is 5672, with TLS 5671.", required=True),
            Attribute("tls_cert", "string", "File with the certificate chain in PEM; makes this a TLS listener. Relative to the configuration file."),
            Attribute("tls_key", "string", "File with the private key of `tls_cert`, without a passphrase."),
            Attribute("tls_ca", "string", "File with the certificates that may sign those of peers. A peer that shows one may log in by it (SASL EXTERNAL), as the user of its common name; one that shows none logs in as everywhere else."),
        ),
    ),
    Entity(
        "settings",
        "What the node does when nobody said otherwise.",
        many=False,
        attributes=(
            Attribute("auto_create_queues", "boolean", "An AMQP 1.0 link to a plain address that does not exist makes a queue of that name, if the user may configure it.", default=True),
            Attribute("guest", "boolean", "User `guest` with password `guest` exists, and may enter from this machine only.", default=True),
            Attribute("anonymous", "boolean", "Peers on this machine may enter without a name (SASL ANONYMOUS, or AMQP 1.0 without SASL); they count as `guest`.", default=True),
            Attribute("scram", "boolean", "Passwords are kept as verifiers of SCRAM-SHA-256: new ones at once, others after a login that tells them. When everyone who has a password has a verifier, peers are offered that mechanism first.", default=False),
            Attribute("durability", "string", "What durable messages survive in queues that do not say so themselves (`x-durability`): `sync` the end of the power, `write` the end of the process, `memory` neither. Confirms wait accordingly.", default="sync", choices=('sync', 'write', 'memory')),
        ),
    ),
    Entity(
        "users",
        "Who may enter. Read again on SIGHUP.",
        many=True,
        attributes=(
            Attribute("name", "string", "Name of the user.", required=True),
            Attribute("password", "string", "The password in clear, for tests and trials. Give this or `password_hash`."),
            Attribute("password_hash", "string", "What `weft hash-password` printed for the password."),
            Attribute("tags", "strings", "`administrator`, `monitoring`, `management` or `impersonator` (may set any user-id on messages).", default=()),
        ),
    ),
    Entity(
        "vhosts",
        "Virtual hosts beside `/`, which always exists. Read again on SIGHUP.",
        many=True,
        attributes=(
            Attribute("name", "string", "Name of the virtual host.", required=True),
        ),
    ),
    Entity(
        "permissions",
        "What a user may do in a virtual host: regular expressions that a resource's name must match. The empty pattern matches nothing but the empty name. Read again on SIGHUP.",
        many=True,
        attributes=(
            Attribute("user", "string", "Name of the user.", required=True),
            Attribute("vhost", "string", "Name of the virtual host.", default="/"),
            Attribute("configure", "string", "Exchanges and queues the user may declare and delete.", default=""),
            Attribute("write", "string", "Exchanges and queues the user may send to.", default=""),
            Attribute("read", "string", "Queues the user may receive from, exchanges the user may bind to.", default=""),
        ),
    ),
    Entity(
        "policies",
        "Settings for every queue and exchange of a virtual host whose name matches (docs/guides/policies.md). Read again on SIGHUP. More can be set while the node runs (`weft policy set`).",
        many=True,
        attributes=(
            Attribute("name", "string", "Name of the policy.", required=True),
            Attribute("pattern", "string", "Regular expression that a name must match.", required=True),
            Attribute("definition", "table", "What it sets: `max-length`, `message-ttl`, `dead-letter-exchange`, …, by the names of RabbitMQ's policies.", required=True),
            Attribute("vhost", "string", "Name of the virtual host.", default="/"),
            Attribute("apply_to", "string", "What it applies to.", default="all", choices=('all', 'exchanges', 'queues', 'classic_queues', 'quorum_queues', 'streams')),
            Attribute("priority", "integer", "Of several that match, the one with the highest number applies.", default=0, min=-2147483647, max=2147483647),
            Attribute("operator", "boolean", "It is an operator policy: a bound to what other policies and arguments say.", default=False),
        ),
    ),
    Entity(
        "links",
        "Connections this node keeps to other nodes of its fabric, or to other brokers that speak AMQP 1.0. Read again on SIGHUP. More can be made while it runs (`weft link add`).",
        many=True,
        attributes=(
            Attribute("name", "string", "Name of the link.", required=True),
            Attribute("urls", "strings", "`amqp://[user:password@]host[:port][/vhost]` or `amqps://…`; with several the next is tried when one fails.", required=True),
            Attribute("role", "string", "What the peer is to this node, for maps: `gateway`, `remote`, `infra`, `core`, ….`gateway` is also where services that start here announce themselves.", default=""),
            Attribute("heartbeat_s", "integer", "A peer that says nothing for twice this long is taken for dead.", default=5, min=1, max=3600),
            Attribute("retry_max_s", "integer", "The longest wait between two attempts to connect.", default=30, min=1, max=86400),
            Attribute("management", "string", "Where the management of a RabbitMQ answers, such as `http://host:15672`; dynamic routes from it bind by that, with the user of the link.", default=""),
            Attribute("tls_ca", "string", "File with the certificates that may sign the peer's; empty: the system's.", default=""),
        ),
    ),
    Entity(
        "directory",
        "Where the fabric's directory is kept: services, addresses, and settings of nodes (docs/guides/network.md).",
        many=False,
        attributes=(
            Attribute("url", "string", "`embedded:` keeps it at the nodes, which tell each other; `zookeeper://host:port[,host:port…]/root` is an ensemble beside them.", default="embedded:"),
        ),
    ),
    Entity(
        "routes",
        "What links carry. Read again on SIGHUP. More can be made while the node runs (`weft route add`, `qpid-route`).",
        many=True,
        attributes=(
            Attribute("name", "string", "Name of the route; without one it is made of the other keys.", default=""),
            Attribute("link", "string", "Name of the link.", required=True),
            Attribute("kind", "string", "`queue` drains a queue, `static` carries what an exchange routes by one key, `dynamic` what the bindings at the destination ask for.", required=True),
            Attribute("exchange", "string", "Exchange at the destination that messages are published to.", default=""),
            Attribute("queue", "string", "`queue`: the queue at the source.", default=""),
            Attribute("key", "string", "`static`: the binding key. `queue`: a routing key in place of each message's own.", default=""),
            Attribute("source_exchange", "string", "Exchange at the source, if its name differs.", default=""),
            Attribute("direction", "string", "`pull` brings messages here, `push` sends them to the peer.", default="pull"),
            Attribute("vhost", "string", "Virtual host at this node.", default="/"),
            Attribute("credit", "integer", "Messages on the way and not yet safe at the destination.", default=1000, min=1, max=100000),
            Attribute("backlog_max", "integer", "Pull no more while this many of the route's messages wait here for consumers; 0: no such bound. Small numbers balance messages by how fast each destination really works.", default=0, min=0),
            Attribute("bytes_per_s_max", "integer", "Bytes of messages that may cross in a second; 0: no such bound.", default=0, min=0),
            Attribute("expires_ms", "integer", "How long the source keeps messages for a destination that is away.", default=86400000, min=1000),
            Attribute("relay", "string", "Which messages an exchange route passes on: `ring`, in any shape, whatever the other end has not seen; `complete`, among nodes that are all linked to each other, only what was published at the source itself.", default="ring", choices=('ring', 'complete')),
        ),
    ),
    Entity(
        "http",
        "Management over HTTP, and AMQP over WebSocket at `/amqp`. Without this table there is neither; management over AMQP is always there.",
        many=False,
        attributes=(
            Attribute("address", "string", "`HOST:PORT` to listen on; port 0 takes a free one.", default="127.0.0.1:15672"),
            Attribute("tls_cert", "string", "File with the certificate chain in PEM; makes it HTTPS. Relative to the configuration file."),
            Attribute("tls_key", "string", "File with the private key of `tls_cert`, without a passphrase."),
            Attribute("origins", "strings", "Web sites whose pages may connect by WebSocket, such as `https://shop.example`; `*` lets any. Programs that are no browsers are not asked.", default=()),
        ),
    ),
    Entity(
        "events",
        "What the node tells of itself on the exchange `weft.events`.",
        many=False,
        attributes=(
            Attribute("statistics_s", "integer", "Seconds between the statistics of objects that changed, while somebody listens.", default=10, min=1, max=86400),
        ),
    ),
    Entity(
        "log",
        "What the node says in words, on standard error and as events of the class `log`.",
        many=False,
        attributes=(
            Attribute("level", "string", "From which severity on lines are written and told, of every log that has no level of its own. Without it as the program has it that runs the node: `warning` with `weft up`.", choices=('debug', 'info', 'warning', 'error')),
        ),
    ),
    Entity(
        "tracing",
        "Spans of messages that carry a recorded W3C trace context (docs/guides/operations.md, \"Traces\"). Without this table none are noted.",
        many=False,
        attributes=(
            Attribute("endpoint", "string", "Where spans go, as OTLP over HTTP in JSON: `http://127.0.0.1:4318/v1/traces`.", required=True),
            Attribute("one_in", "integer", "Of so many traces one is taken, by its id, so that all nodes take the same.", default=1, min=1, max=1000000000),
        ),
    ),
    Entity(
        "limits",
        "Bounds of the node, and why each has its number.",
        many=False,
        attributes=(
            Attribute("frame_bytes_max", "integer", "Largest frame we take or make, both protocols: RabbitMQ's default, so its clients negotiate as they are used to.", default=131072, min=4096),
            Attribute("channels_max", "integer", "Channels (0-9-1) or sessions (1.0) on one connection: RabbitMQ's default for channels.", default=2047, min=1, max=65535),
            Attribute("links_max", "integer", "Links on one AMQP 1.0 session (handle-max + 1).", default=1024, min=1),
            Attribute("consumers_max", "integer", "Consumers of one 0-9-1 channel: far more than a program has by design, so that a leak is told early.", default=10000, min=1),
            Attribute("heartbeat_s", "integer", "Suggested heartbeat (0-9-1) and idle time-out (1.0); 0 turns it off.", default=60, min=0, max=65535),
            Attribute("message_bytes_max", "integer", "Largest message: 128 MiB, RabbitMQ's old default; larger ones belong in an object store.", default=134217728, min=1),
            Attribute("memory_bytes_max", "integer", "Memory for messages; 0 means 40 % of the machine's, or of the control group's if that is less.", default=0, min=0),
            Attribute("output_bytes_max", "integer", "Output waiting per connection before delivery to it pauses: a few socket buffers, so memory follows consumers, not queues.", default=262144, min=4096),
            Attribute("flush_bytes", "integer", "Output of all connections together after which the node must flush before it reads more.", default=262144, min=4096),
            Attribute("work_max", "integer", "Units of work (a frame, an enqueue, a delivery) one engine call may do before others get their turn: about 5 ms.", default=20000, min=1),
            Attribute("link_credit", "integer", "Credit a sending 1.0 peer holds: enough to keep a pipe full, small enough to stop a flood quickly.", default=1000, min=1),
            Attribute("session_window", "integer", "Transfer frames a 1.0 peer may have in flight per session.", default=5000, min=1),
            Attribute("unauthenticated_s", "integer", "Time a peer has to finish its opening before it is cut (slow-loris).", default=10, min=1),
            Attribute("unfinished_s", "integer", "Seconds in which a message that came in part must bring its end, or 64 KiB more; then it is given up, and its channel or link closed.", default=120, min=1, max=65535),
            Attribute("connections_max", "integer", "Connections of one node; more are closed at accept.", default=65536, min=1),
            Attribute("addresses_max", "integer", "Resolved `to` addresses remembered per principal; the table is emptied when full.", default=4096, min=1),
            Attribute("transactions_max", "integer", "Open AMQP 1.0 transactions per connection.", default=64, min=1),
            Attribute("transaction_bytes_max", "integer", "Bytes of messages held by the open transactions of one connection.", default=67108864, min=1),
            Attribute("prepared_max", "integer", "Prepared transactions of a node that wait to be resolved; more are rolled back when they ask.", default=1000, min=0),
            Attribute("prepared_bytes_max", "integer", "Bytes of messages that all of them hold in memory.", default=268435456, min=1),
            Attribute("relay_window_s", "integer", "How long the node remembers what came by relay links, so that nothing comes twice: longer than any outage that ends by itself, and never less than 1.25 × `doubt_s`.", default=600, min=1, max=31536000),
            Attribute("relay_ids_max", "integer", "How many of these it remembers: a million take about 32 MB.", default=1000000, min=1),
            Attribute("doubt_s", "integer", "Seconds that a message which another node may have waits for that node before it goes to others.", default=60, min=0),
            Attribute("end_to_end_max", "integer", "Messages of one publisher (a link, or an AMQP 0-9-1 connection) that may wait for their consumers' answers in queues with `x-ack: end-to-end`; then it is given no more credit, or not read.", default=8192, min=1),
        ),
    ),
)
