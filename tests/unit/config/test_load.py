"""Configuration files: everything that can be said is read, and what is wrong is named with its line."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config import Configuration, Listen, Permission, Settings, User, load, parse, validate_node_name
from weft.config._generated_schema import ENTITIES
from weft.model.errors import ConfigError
from weft.model.limits import Limits
from weft.net.endpoint import Endpoint

FULL = """\
[node]
name = "edge-1"
data_dir = "data"

[[listen]]
address = "0.0.0.0"

[[listen]]
address = "[::]:5671"
tls_cert = "tls/cert.pem"
tls_key = "/etc/key.pem"
tls_ca = "tls/ca.pem"

[settings]
anonymous = false

[[users]]
name = "ann"
password_hash = "hash"
tags = ["administrator"]

[[users]]
name = "bob"
password = "secret"

[[vhosts]]
name = "orders"

[[permissions]]
user = "bob"
vhost = "orders"
write = "^in\\\\."

[limits]
heartbeat_s = 5
"""


def test_everything_that_can_be_said() -> None:
    assert parse(FULL, folder=Path("/conf")) == Configuration(
        name="edge-1",
        data_dir=Path("/conf/data"),
        listen=(
            Listen(Endpoint("0.0.0.0", 5672)),
            Listen(Endpoint("::", 5671), Path("/conf/tls/cert.pem"), Path("/etc/key.pem"), Path("/conf/tls/ca.pem")),
        ),
        limits=Limits(heartbeat_s=5),
        settings=Settings(anonymous=False),
        users=(User("ann", None, "hash", ("administrator",)), User("bob", "secret")),
        vhosts=("orders",),
        permissions=(Permission("bob", "orders", "", r"^in\.", ""),),
    )


def test_nothing_said_is_all_defaults() -> None:
    assert parse("") == Configuration()


def test_passwords_do_not_show_in_logs() -> None:
    assert "secret" not in repr(parse(FULL))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[nod]\n", "f:1: unknown table 'nod', did you mean 'node'?"),
        ("[xyzzy]\n", "f:1: unknown table 'xyzzy', known are node, listen"),
        ("\n[node]\n\nnmae = 'x'\n", "f:4: unknown key node.nmae, did you mean 'name'?"),
        ("node.nmae = 'x'", "f:1: unknown key node.nmae, did you mean 'name'?"),
        ("node = 'x'", "f:1: node is a table: write [node]"),
        ("[listen]\naddress = 'x'", "f:1: listen is a list of tables: write [[listen]]"),
        ("[[listen]]\naddress='h'\n[[listen]]\naddress=1", "f:4: listen.address must be a string"),
        ("[[listen]]\naddress='h'\n\n[[listen]]\n", "f:4: listen.address is missing"),
        ("[[listen]]\naddress='::1'", "f:2: '::1' is not HOST:PORT"),
        ("[[listen]]\naddress='h'\ntls_key='k'", "f:1: tls_cert and tls_key need each other"),
        ("[[listen]]\naddress='h'\ntls_ca='c'", "f:1: tls_ca needs tls_cert and tls_key"),
        ("[limits]\nheartbeat_s = true", "f:2: limits.heartbeat_s must be a whole number"),
        ("[limits]\nheartbeat_s = -1", "f:2: limits.heartbeat_s must be from 0 to 65535"),
        ("[limits]\nframe_bytes_max = 8", "f:2: limits.frame_bytes_max must be from 4096 to"),
        ("[settings]\nguest = 1", "f:2: settings.guest must be true or false"),
        ("[[users]]\nname='a'\npassword='p'\ntags='x'", "f:4: users.tags must be a list of strings"),
        ("[[users]]\nname='a'", "f:1: user 'a' needs either password or password_hash"),
        ("[[users]]\nname='a'\npassword='p'\npassword_hash='h'", "f:1: user 'a' needs either"),
        ("[[users]]\nname='a'\npassword='p'\n[[users]]\nname='a'\npassword='p'", "f:4: user 'a' is there twice"),
        ("[[permissions]]\nuser='gest'", "f:2: no user 'gest', did you mean 'guest'?"),
        ("[[permissions]]\nuser='guest'\nvhost='orders'", "f:3: no virtual host 'orders'"),
        ("[[permissions]]\nuser='guest'\nread='('", "f:3: read is not a regular expression"),
        ("[node]\nname = 'a b'", "f:2: 'a b' is not a node name"),
        ("[node\nname = 'a'", "f:1: not TOML: expected ']'"),
        ("a = [", "f:end: not TOML: "),
        ("a = " + "[" * 10_000, "f: not TOML: nested too deeply"),
    ],
)
def test_complaints(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert str(error)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read .*missing\.toml: no such file or directory$"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"^cannot read .*: is a directory$"):
        load(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"[node]\n\xff")
    with pytest.raises(ConfigError, match=r"binary\.toml:2: not UTF-8 text"):
        load(binary)
    binary.write_bytes(b"#" * 2_000_000)
    with pytest.raises(ConfigError, match=r"larger than 1048576 bytes"):
        load(binary)


def test_node_names() -> None:
    assert validate_node_name("edge-1.site_b") == "edge-1.site_b"
    for name in ("", ".", "..", "../up", "-x", "a/b", "a" * 65, "é"):
        with pytest.raises(ConfigError):
            validate_node_name(name)


def test_schema_and_limits_agree() -> None:
    (entity,) = (entity for entity in ENTITIES if entity.name == "limits")
    documented = {attribute.name: attribute.default for attribute in entity.attributes}
    assert documented == {field.name: field.default for field in dataclasses.fields(Limits)}


def test_schema_and_settings_agree() -> None:
    (entity,) = (entity for entity in ENTITIES if entity.name == "settings")
    documented = {attribute.name: attribute.default for attribute in entity.attributes}
    assert documented == {field.name: field.default for field in dataclasses.fields(Settings)}


def test_every_key_has_a_reader() -> None:
    """A key that nobody reads promises what is not there. Those that define keys and pass them on do not count."""
    tree = Path(__file__).parents[3]
    python = [path for path in (tree / "src" / "weft").rglob("*.py") if "_generated" not in path.name]
    rust = (tree / "crates").glob("*/src/**/*.rs")
    passing = {"limits.py", "limits.rs", "load.py"}
    text = "\n".join(path.read_text(encoding="utf-8") for path in (*python, *rust) if path.name not in passing)
    read = set(re.findall(r"[.\"']([a-z][a-z_]*)\b", text))
    keys = [(entity.name, key.name) for entity in ENTITIES for key in entity.attributes]
    assert len(keys) > 60
    assert [(table, key) for table, key in keys if not {key, f"{table}_{key}"} & read] == []
