"""Rules over what the objects of a fabric say: thresholds in a file, actions when they are crossed.

Owns the rule file, the decision which rule fires, and the actions. Observations (attributes of queues, links, nodes)
and events come in; firings go out and become log lines, events, traps, check results, calls, commands.
It must never look at a message, and never run inside a node's loop: actions wait for the world.
Rule: docs/guides/rules.md.
"""

from weft.rules.file import RuleFile, load, parse
from weft.rules.rule import Firing, Observation, Rule
from weft.rules.watch import Watch

__all__ = ["Firing", "Observation", "Rule", "RuleFile", "Watch", "load", "parse"]
