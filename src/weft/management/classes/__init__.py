"""The providers of the classes that the node itself knows.

Owns one module per kind of object, and putting them into a `Manager`.
Each module reads the kernel's tables and the definitions of broker and policy, and asks those two for every change.
None may know how a request arrived.
Rule: schema/management.json.
"""

from __future__ import annotations

from weft.management.classes.barriers import Barriers
from weft.management.classes.connections import Connections, Links, Sessions
from weft.management.classes.definitions import Bindings, Exchanges, Vhosts
from weft.management.classes.node import NodeClass
from weft.management.classes.parameters import GlobalParameters, Parameters
from weft.management.classes.policies import PoliciesClass
from weft.management.classes.queries import Queries
from weft.management.classes.queues import Queues, Streams
from weft.management.classes.rules import Rules
from weft.management.classes.system import Agent, System
from weft.management.classes.transactions import Transactions
from weft.management.classes.users import PermissionsClass, TopicPermissions, Users
from weft.management.manager import Manager
from weft.management.peers import Peers


def register_classes(manager: Manager, peers: Peers) -> None:
    """Let a manager answer for everything the node knows by itself."""
    manager.register("node", NodeClass(manager, peers))
    manager.register("system", System())
    manager.register("agent", Agent(manager))
    manager.register("rule", Rules(manager))
    manager.register("vhost", Vhosts(manager))
    manager.register("connection", Connections(manager, peers))
    manager.register("session", Sessions(manager, peers))
    manager.register("link", Links(manager, peers))
    manager.register("exchange", Exchanges(manager))
    manager.register("queue", Queues(manager))
    manager.register("stream", Streams(manager))
    manager.register("binding", Bindings(manager))
    manager.register("barrier", Barriers(manager))
    manager.register("transaction", Transactions(manager))
    manager.register("user", Users(manager, peers))
    manager.register("permission", PermissionsClass(manager, peers))
    manager.register("topic_permission", TopicPermissions(manager, peers))
    manager.register("parameter", Parameters(manager))
    manager.register("global_parameter", GlobalParameters(manager))
    manager.register("query", Queries())
    manager.register("policy", PoliciesClass(manager, operator=False))
    manager.register("operator_policy", PoliciesClass(manager, operator=True))
