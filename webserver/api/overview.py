"""`/overview`: what goes on, at a glance."""

from __future__ import annotations

from typing import Any

from webserver import shapes, wording
from webserver.rest import Answer, Call, Noun

noun = Noun("overview", "What goes on, and what needs a person.")


@noun.operation("GET", "/overview", answers={200: Answer("What goes on.", shapes.Overview)})
def overview(call: Call) -> Any:
    """Look at everything at a glance.

    It costs little however many tasks there are.
    """
    return wording.overview(call.web.master.read("overview"))
