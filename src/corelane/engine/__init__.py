"""Rows in, arrays out: the queue, the choice of shape and the thread that owns the core.

Knows rows and shapes; nothing of HTTP, text or event loops.
"""

from corelane.engine.core import RESTART_S, Core
from corelane.engine.slot import Slot
from corelane.engine.ticket import Ticket
from corelane.engine.watch import Sentinel, Watch

__all__ = ["RESTART_S", "Core", "Sentinel", "Slot", "Ticket", "Watch"]
