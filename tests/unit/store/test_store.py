"""The store keeps what it is told, whole, and says clearly when it cannot."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from weft.model.errors import ConfigError, Corrupt, LocalProtocolError, Unavailable, WeftError
from weft.store import Binding, Exchange, Permission, Queue, Store, User
from weft.store.tables import decode_table, encode_table

USER = User("ada", "scrypt$x", ("administrator", "impersonator"))
PERMISSION = Permission("ada", "/", "^a", "", ".*")
EXCHANGE = Exchange("/", "orders", "topic", durable=True, internal=True, arguments={"alternate-exchange": "lost"})
QUEUE = Queue("/", "jobs", durable=True, auto_delete=True, subscription=True, arguments={"x-max-length": 7})
BINDING = Binding("/", "orders", "queue", "jobs", "a.#", {"x-match": "all", "n": 1})


def fill(store: Store) -> None:
    with store.transaction():
        store.put_vhost("/")
        store.put_user(USER)
        store.put_permission(PERMISSION)
        store.put_exchange(EXCHANGE)
        store.put_queue(QUEUE)
        store.put_binding(BINDING)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "definitions.db"


def test_everything_is_there_after_a_reopen(path: Path) -> None:
    store = Store(path)
    assert store.is_new
    fill(store)
    store.close()
    store = Store(path)
    assert not store.is_new
    assert store.vhosts() == ["/"]
    assert store.users() == [USER]
    assert store.permissions() == [PERMISSION]
    assert store.exchanges() == [EXCHANGE]
    assert store.queues() == [QUEUE]
    assert store.bindings() == [BINDING]
    store.close()


def test_what_was_not_finished_is_not_there(path: Path) -> None:
    store = Store(path)

    def fail_halfway() -> None:
        with store.transaction():
            store.put_vhost("/")
            store.put_queue(QUEUE)
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert store.vhosts() == []
    store.close()
    assert Store(path).queues() == []


def test_a_crash_leaves_what_was_committed(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    fill(store)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in tmp_path.glob("definitions.db*"):
        (crashed / file.name).write_bytes(file.read_bytes())
    assert (crashed / "definitions.db-wal").stat().st_size > 0
    assert Store(crashed / "definitions.db").queues() == [QUEUE]
    store.close()


def test_a_torn_log_loses_only_its_torn_end(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    fill(store)
    log = path.with_name("definitions.db-wal")
    committed_bytes = log.stat().st_size
    with store.transaction():
        store.put_vhost("later")
    torn = tmp_path / "torn.db"
    torn.write_bytes(path.read_bytes())
    torn.with_name("torn.db-wal").write_bytes(log.read_bytes()[: committed_bytes + 100])
    assert Store(torn).vhosts() == ["/"]
    store.close()


def test_writing_again_replaces(path: Path) -> None:
    store = Store(path)
    fill(store)
    with store.transaction():
        store.put_user(User("ada", None))
        store.put_permission(Permission("ada", "/", "", "", ""))
        store.put_binding(Binding("/", "orders", "queue", "jobs", "a.#", {"n": 1, "x-match": "all"}))
    assert store.users() == [User("ada", None)]
    assert store.permissions() == [Permission("ada", "/", "", "", "")]
    assert store.bindings() == [BINDING]


def test_a_queue_takes_its_bindings_along() -> None:
    store = Store()
    fill(store)
    with store.transaction():
        store.delete_queue("/", "jobs")
    assert store.queues() == store.bindings() == []
    assert store.exchanges() == [EXCHANGE]


def test_an_exchange_takes_bindings_from_and_to_it_along() -> None:
    store = Store()
    fill(store)
    kept = Binding("/", "amq.topic", "queue", "jobs")
    with store.transaction():
        store.put_binding(Binding("/", "amq.topic", "exchange", "orders"))
        store.put_binding(kept)
        store.delete_exchange("/", "orders")
    assert store.exchanges() == []
    assert store.bindings() == [kept]


def test_a_user_takes_permissions_along_and_a_vhost_everything() -> None:
    store = Store()
    fill(store)
    with store.transaction():
        store.delete_user("ada")
    assert store.users() == store.permissions() == []
    fill(store)
    with store.transaction():
        store.delete_vhost("/")
    assert store.vhosts() == store.permissions() == store.exchanges() == store.queues() == store.bindings() == []
    assert store.users() == [USER]


def test_single_rows_can_be_deleted() -> None:
    store = Store()
    fill(store)
    with store.transaction():
        store.delete_permission("ada", "/")
        store.delete_binding(BINDING)
    assert store.permissions() == store.bindings() == []


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database, " * 100)
    with pytest.raises(Corrupt, match=r"definitions .*definitions\.db are damaged"):
        Store(path)
    assert path.read_bytes().startswith(b"this is not")


def test_a_torn_file_is_refused(path: Path) -> None:
    store = Store(path)
    fill(store)
    store.close()
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(Corrupt, match="damaged"):
        Store(path)


def test_a_file_with_wrong_bytes_is_refused_or_read_right(path: Path) -> None:
    store = Store(path)
    fill(store)
    store.close()
    whole = path.read_bytes()
    refused = 0
    for offset in range(0, len(whole), 331):
        path.write_bytes(whole[:offset] + b"\xff\x00\xff\x00" * 16 + whole[offset + 64 :])
        try:
            store = Store(path)
            store.queues(), store.users(), store.bindings(), store.exchanges(), store.permissions()
            store.close()
        except WeftError as error:
            assert str(path) in str(error) or "definitions" in str(error) or "stored" in str(error)
            refused += 1
    assert refused > 5


def test_a_newer_file_is_refused_by_name(path: Path) -> None:
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(ConfigError, match="written by a newer weft"):
        Store(path)


def test_an_unknown_format_is_refused(path: Path) -> None:
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 0")
    database.close()
    with pytest.raises(Corrupt, match="unknown format 0"):
        Store(path)


@pytest.mark.parametrize("tags", ["{", "{}", "[1]"])
def test_rows_it_did_not_write_are_refused(tags: str) -> None:
    store = Store()
    store._database.execute("INSERT INTO users VALUES ('ada', NULL, ?)", [tags])
    with pytest.raises(Corrupt, match="tags"):
        store.users()


def test_a_missing_table_is_refused() -> None:
    store = Store()
    store._database.execute("DROP TABLE queues")
    with pytest.raises(Corrupt, match="cannot read definitions"):
        store.queues()


def test_a_database_of_someone_else_is_refused(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE photos (name TEXT)")
    database.close()
    with pytest.raises(Corrupt, match="not one of weft's"):
        Store(path)


def test_two_nodes_cannot_share_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.store.database.LOCK_TIMEOUT_S", 0.01)
    store = Store(path)
    with pytest.raises(Unavailable, match="in use by another node"):
        Store(path)
    store.close()
    Store(path).close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        Store(tmp_path / "nowhere" / "definitions.db")


def test_a_full_disk_raises_and_changes_nothing(path: Path) -> None:
    store = Store(path)
    store._database.execute("PRAGMA max_page_count = 10")

    def save_too_much() -> None:
        with store.transaction():
            store.put_vhost("/")
            store.put_user(User("x" * 100_000, None))

    with pytest.raises(Unavailable, match="cannot save definitions"):
        save_too_much()
    assert store.vhosts() == []
    with store.transaction():
        store.put_vhost("/")
    assert store.vhosts() == ["/"]


def test_syncing_reaches_the_disk_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    store = Store(path)
    store.sync()
    assert synced == []
    fill(store)
    with store.transaction():
        store.put_vhost("v")
    store.sync()
    store.sync()
    assert len(synced) == 1
    with store.transaction():
        store.vhosts()
    store.sync()
    assert len(synced) == 1
    store.close()


def test_a_sync_that_fails_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: int) -> None:
        raise OSError(5, "Input/output error")

    store = Store(path)
    fill(store)
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", fail)
        with pytest.raises(Unavailable, match="cannot save definitions: Input/output error"):
            store.sync()
    store.sync()
    store.close()


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"a": 1, "b": [True, None, -(2**63), 2**64 - 1, 1.5, "é\0"]},
        {"b": b"\x00\xff", "t": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)},
        {"$bytes": "x", "deep": {"$time": {"$table": 1}}},
        {"one": {"$bytes": b"", "more": 1}},
    ],
)
def test_tables_survive(table: dict[str, object]) -> None:
    assert decode_table(encode_table(table)) == table


def test_values_amqp_does_not_have_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="cannot be a complex"):
        encode_table({"a": [1j]})


def test_tables_are_compared_without_order_but_with_types() -> None:
    assert encode_table({"a": 1, "b": 2}) == encode_table({"b": 2, "a": 1})
    assert encode_table({"a": 1}) != encode_table({"a": True})
    assert encode_table({"a": 1}) != encode_table({"a": "1"})


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": {"$bytes": "?"}}', '{"a": {"$time": "soon"}}', "[" * 100_000])
def test_text_it_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(Corrupt):
        decode_table(text)


def test_objects_survive(path: Path) -> None:
    with closing(Store(path)) as store, store.transaction():
        store.put_object("link", "up", {"urls": ["amqp://a", "amqp://b"], "durable": True})
        store.put_object("link", "gone", {})
        store.put_object("route", "up", {"key": "k"})
        store.delete_object("link", "gone")
    with closing(Store(path)) as store:
        assert store.objects("link") == {"up": {"urls": ["amqp://a", "amqp://b"], "durable": True}}
        assert store.objects("route") == {"up": {"key": "k"}}


def test_a_file_of_the_first_format_is_brought_up(path: Path) -> None:
    with closing(Store(path)) as store, store.transaction():
        store.put_vhost("kept")
    with closing(sqlite3.connect(path)) as database:
        later = ("objects", "policies", "topic_permissions", "parameters", "limits")
        lacking = "".join(f"DROP TABLE {name};" for name in later) + "ALTER TABLE exchanges DROP COLUMN number;"
        database.executescript(f"{lacking} PRAGMA user_version = 1;")
    with closing(Store(path)) as store:
        assert store.vhosts() == ["kept"]
        assert store.exchanges() == []
        assert store.objects("link") == {}


def test_what_was_deleted_is_known_and_no_more_of_it_than_needed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.store.definitions.DELETED_MAX", 2)
    store = Store(path)
    fill(store)
    queues = [Queue("/", name) for name in "abc"] + [Queue("other", name) for name in "de"]
    for queue in queues:
        with store.transaction():
            store.put_queue(queue)
    for queue in queues[:3]:
        with store.transaction():
            store.delete_queue(queue.vhost, queue.name)
    store.close()
    store = Store(path)
    assert store.deleted_queues() == {queue.number for queue in queues[1:3]}
    with store.transaction():
        store.delete_vhost("other")
        store.delete_queue("/", "never there")
    assert store.deleted_queues() == {queue.number for queue in queues[2:]}
    store.close()
