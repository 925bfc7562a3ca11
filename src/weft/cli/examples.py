"""Examples of every command, as `weft COMMAND --help` shows them.

Owns the lines alone. Nothing comes in; a table by command goes out.
It must never show what does not work: a test reads every line with the options of its command.
See docs/start.md for a first walk through some of them.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "weft up",
        "weft up --name edge --listen 0.0.0.0:5672 --data-dir /var/lib/weft/edge",
        "weft up --config edge.toml",
    ),
    "send": (
        "weft send orders 'one coffee' 'two teas'",
        "weft send orders --header colour=red < lines.txt",
        "weft send --topic sensors.roof.temperature 11.3",
    ),
    "receive": (
        "weft receive orders --count 10",
        "weft receive orders --browse --wait 1 --json",
        "weft receive --topic 'sensors.#'",
        "weft receive audit --offset first",
    ),
    "request": ("weft request greeter world --timeout 5",),
    "spool": ("weft spool /var/spool/till", "weft spool /var/spool/till --retry"),
    "bench": ("weft bench --seconds 3 --size 100",),
    "watch": ("weft watch rules.toml --dry-run",),
    "scale": ("weft scale services.toml",),
    "config": ("weft config > edge.toml", "weft config --check edge.toml"),
    "log": (
        "weft log /var/lib/weft/edge",
        "weft log /var/lib/weft/edge audit --from 2026-01-31T12:00:00Z --format json",
        "weft log /var/lib/weft/edge audit --format parquet --output audit.parquet",
    ),
    "backup": ("weft backup /var/lib/weft/edge /mnt/backup/edge-monday",),
    "link": ("weft link add hub amqp://hub.example:5672 --role gateway", "weft link list"),
    "route": (
        "weft route add dynamic hub --exchange events",
        "weft route add queue hub --queue orders --push",
        "weft route list --json",
    ),
    "gateway": ("weft gateway http://127.0.0.1:8080/in 'amqp://localhost#orders'",),
    "relay": ("weft relay create amqp://a amqp://b --exchange events", "weft relay list"),
    "map": ("weft map", "weft map --url amqp://hub.example --svg map.svg"),
    "plan": ("weft plan", "weft plan fabric.toml --from source --to sink --uptime 0.999"),
    "fabric": (
        "weft fabric plan fabric.toml",
        "weft fabric apply fabric.toml --plan 1f0c3a9be2d4",
        "weft fabric up fabric.toml",
    ),
    "directory": (
        "weft directory list",
        "weft directory resolve greeter",
        'weft directory put /addresses/greeter \'{"urls": ["amqp://host"]}\'',
    ),
    "names": ("weft names --listen 127.0.0.1:5353 --domain weft.internal",),
    "exchange": (
        "weft exchange add topic events",
        "weft exchange bind events audit 'orders.#'",
        "weft exchange bind tasks red --argument x-match=any --argument colour=red",
        "weft exchange bindings",
    ),
    "queue": (
        "weft queue add orders --argument x-max-length=1000",
        "weft queue add audit --argument x-queue-type=stream",
        "weft queue list --json",
        "weft queue del orders --force",
    ),
    "policy": (
        "weft policy set short '^tmp\\.' message-ttl=60000 max-length=1000 --apply-to queues",
        "weft policy list",
    ),
    "ctl": (
        "weft ctl classes",
        "weft ctl list queue --columns name,ready --sort ready --reverse --count 10",
        "weft ctl show node",
        "weft ctl add permission ann 'configure=^ann' 'write=.*' 'read=.*' --vhost orders",
        "weft ctl watch 'queue.#'",
        "weft ctl export definitions.json",
    ),
    "top": ("weft top", "weft top --all --sort wait", "weft top --once --sort age"),
    "report": ("weft report --pause 5",),
    "browse": ("weft browse orders --count 5",),
    "tap": ("weft tap 'events/orders.#'",),
    "trace": ("weft trace orders",),
    "move": ("weft move orders orders.later --count 100",),
    "retry": ("weft retry orders.dead",),
    "recover": ("weft recover orders --sent ids.txt", "weft recover orders.dead --back"),
    "quiesce": ("weft quiesce",),
    "resume": ("weft resume",),
    "drain": ("weft drain --url amqp://old.example",),
    "completion": (
        "weft completion bash > ~/.local/share/bash-completion/completions/weft",
        "weft completion fish > ~/.config/fish/completions/weft.fish",
        'eval "$(weft completion zsh)"',
    ),
    "hash-password": ("weft hash-password --scram",),
    "ingest": ("weft ingest amqp://guest:guest@rabbit.example --queue orders --stream audit",),
    "pipeline": (
        "weft pipeline run --data-dir /var/lib/weft/edge --once",
        "weft pipeline report --html report.html",
        "weft pipeline replay --lake lake --name monday --contains coffee",
    ),
}
