"""The directory as names: SRV records for services and nodes, for programs that only know DNS.

Owns the zone that is made of a directory's entries, and the answer to one question. Paths and values, then questions as
bytes, come in; answers as bytes go out.
It must never open a socket, ask another name server, or fail on what somebody sent.
Rules: RFC 2782 (`_amqp._tcp.SERVICE.DOMAIN`), RFC 1035; docs/guides/network.md, "Names". Needs `weft[srv]` (dnspython).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset

PORT = 5672
TTL_S = 5
"""Services come and go; a client that asks again soon finds the others."""
RECORDS_MAX = 100
"""In one answer; of more than that the first are told, in order of their names."""
UDP_BYTES, UDP_BYTES_MAX = 512, 1232
"""Without EDNS, and the most that passes everywhere; what is larger is asked for again over TCP."""
MEMBERS, SERVICES, NODES = "/members/", "/services/", "nodes"
_PREFIX = "_amqp._tcp"


class Zone:
    """Names below one domain."""

    def __init__(self, domain: str) -> None:
        """ValueError if it is no domain."""
        try:
            self.origin = dns.name.from_text(domain)
        except dns.exception.DNSException as error:
            raise ValueError(f"{domain!r} is no domain: {error}") from None
        self._records: dict[dns.name.Name, dict[str, list[str]]] = {}

    def update(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """From now on these are the directory's entries: path and value of each."""
        nodes: dict[str, tuple[str, int]] = {}
        served: dict[str, list[str]] = {"": []}
        for path, value in sorted(entries, key=lambda entry: entry[0]):
            if path.startswith(MEMBERS):
                place = _place(value)
                if place is not None:
                    nodes[path.removeprefix(MEMBERS)] = place
            elif path.startswith(SERVICES):
                service, _, node = path.removeprefix(SERVICES).rpartition("/")
                served.setdefault(service, []).append(node)
        served[""] = list(nodes)
        self._records = {}
        for service, names in served.items():
            for node in [name for name in names if name in nodes][:RECORDS_MAX]:
                self._add_place(f"{_PREFIX}.{service}" if service else _PREFIX, node, *nodes[node])

    def _add_place(self, owner: str, node: str, host: str, port: int) -> None:
        target, kind = f"{host}.", ""
        try:
            address = ip_address(host)
            if getattr(address, "scope_id", None):
                return  # it means something on that machine only
            kind = "A" if address.version == 4 else "AAAA"
            target = f"{node}.{NODES}.{self.origin}"
        except ValueError:
            pass  # a name, which others resolve
        try:
            name, at = dns.name.from_text(owner, self.origin), dns.name.from_text(target)
        except dns.exception.DNSException:
            return  # DNS has no such name
        self._records.setdefault(name, {}).setdefault("SRV", []).append(f"0 100 {port} {at}")
        if kind:
            self._records.setdefault(at, {})[kind] = [host]

    def answer(self, question: bytes, *, over_udp: bool) -> bytes | None:
        """The answer to a question; None if it is none."""
        try:
            asked = dns.message.from_wire(question)
            reply = dns.message.make_response(asked)
        except (dns.exception.DNSException, ValueError):
            return None
        self._fill(asked, reply)
        size = min(max(asked.payload, UDP_BYTES), UDP_BYTES_MAX) if over_udp else 65_535
        return reply.to_wire(max_size=size, prefer_truncation=True)

    def _fill(self, asked: dns.message.Message, reply: dns.message.Message) -> None:
        if asked.opcode() != dns.opcode.QUERY or len(asked.question) != 1:
            reply.set_rcode(dns.rcode.NOTIMP)
            return
        name, kind = asked.question[0].name, dns.rdatatype.to_text(asked.question[0].rdtype)
        if not name.is_subdomain(self.origin):
            reply.set_rcode(dns.rcode.REFUSED)
            return
        reply.flags |= dns.flags.AA
        found = self._records.get(name)
        if found is None and name != self.origin:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        records = (found or {}).get(kind, [])
        if records:
            reply.answer.append(dns.rrset.from_text(name, TTL_S, "IN", kind, *records))
        for record in records if kind == "SRV" else ():
            self._add_address(reply, record)

    def _add_address(self, reply: dns.message.Message, record: str) -> None:
        """Where a target is, if we know: it spares a question."""
        target = dns.name.from_text(record.rpartition(" ")[2])
        for kind, addresses in self._records.get(target, {}).items():
            reply.additional.append(dns.rrset.from_text(target, TTL_S, "IN", kind, *addresses))


def _place(value: Mapping[str, Any]) -> tuple[str, int] | None:
    """(host, port) where a member listens, if it says so."""
    urls = value.get("urls")
    if not isinstance(urls, list | tuple):
        return None
    for url in urls:
        try:
            parts = urlsplit(str(url))
            if parts.hostname:
                return parts.hostname, parts.port or PORT
        except ValueError:
            continue
    return None
