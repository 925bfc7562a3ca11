"""Management: every object of a node can be asked for, changed and listened to.

Owns the endpoints over AMQP and HTTP, the events, and the classes behind them, all made from schema/management.json.
Requests come in by messages or HTTP; answers, events and metrics go out. Decisions are asked of broker and policy.
It must never see a message that is not for itself, and never hold the loop for long.
Start reading at `manager`; the guide is docs/guides/management.md.
"""

from weft.management.host import Host
from weft.management.service import Management

__all__ = ["Host", "Management"]
