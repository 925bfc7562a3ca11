"""SNMPv2c traps: a firing becomes a notification.

Owns the mapping of a firing to object identifiers. pysnmp speaks the protocol, and is needed only by those who send
traps (`pip install 'weft[snmp]'`).
It must never be imported with pysnmp missing and fail: only sending does.
Rule: RFC 3416 section 4.2.6; docs/guides/rules.md, "Traps" lists the identifiers.
"""

from __future__ import annotations

from weft.model.errors import ConfigError, Unavailable
from weft.rules.rule import Firing

OID = "1.3.6.1.4.1.8072.9999.9999"
"""Net-SNMP's subtree for experiments; a site sets its own with `oid`."""
COMMUNITY = "public"
PORT = 162
TIMEOUT_S = 2.0
FIELDS = ("rule", "class", "object", "attribute", "value", "threshold", "severity", "raised", "text")
"""In this order below `oid`.1, as strings: `oid`.1.1 is the rule, `oid`.1.9 the text."""


async def send_trap(firing: Firing, *, target: str, community: str = COMMUNITY, oid: str = OID) -> None:
    """Send one trap to `host:port`; nobody confirms a trap."""
    try:
        from pyasn1.error import PyAsn1Error
        from pysnmp.error import PySnmpError
        from pysnmp.hlapi.v3arch.asyncio import (
            CommunityData,
            ContextData,
            NotificationType,
            ObjectIdentity,
            OctetString,
            SnmpEngine,
            UdpTransportTarget,
            send_notification,
        )
    except ImportError as error:
        raise ConfigError("an snmp action needs pysnmp: pip install 'weft[snmp]'") from error
    host, _, port = target.rpartition(":") if ":" in target else (target, "", str(PORT))
    words = firing.as_dict()
    engine = SnmpEngine()
    try:
        place = await UdpTransportTarget.create((host, int(port)), timeout=TIMEOUT_S, retries=0)
        note = NotificationType(ObjectIdentity(f"{oid}.0.{1 if firing.raised else 2}")).add_varbinds(
            *((f"{oid}.1.{at}", OctetString(str(words[field]))) for at, field in enumerate(FIELDS, 1))
        )
        failure, *_ = await send_notification(engine, CommunityData(community), place, ContextData(), "trap", note)
    except (OSError, ValueError, PySnmpError, PyAsn1Error) as error:
        raise Unavailable(f"cannot send a trap to {target}: {error}") from error
    finally:
        engine.close_dispatcher()
    if failure:
        raise Unavailable(f"cannot send a trap to {target}: {failure}")
