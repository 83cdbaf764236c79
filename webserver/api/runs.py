"""`/runs`: one task on one agent, its attempts, and why it is where it is."""

from __future__ import annotations

from typing import Any

from common.errors import Conflict, NotFound, StoreFull
from webserver import shapes, wording
from webserver.rest import Answer, Call, Nothing, Noun

noun = Noun("runs", "One task on one agent.")


@noun.operation("GET", "/runs/{run_id}", answers={200: Answer("The run.", shapes.Run)}, refuses=(NotFound, Conflict))
def get_run(call: Call) -> Any:
    """Look at a run."""
    return wording.run(call.web.master.read("get_run", call.path["run_id"]))


@noun.operation(
    "GET",
    "/runs/{run_id}/attempts",
    answers={200: Answer("All attempts, the first first.", shapes.AttemptPage)},
    refuses=(NotFound, Conflict),
)
def list_attempts(call: Call) -> Any:
    """List a run's attempts."""
    return wording.page("attempts", call.web.master.read("list_attempts", call.path["run_id"]), wording.attempt)


@noun.operation(
    "GET",
    "/runs/{run_id}/why",
    answers={200: Answer("The run, and the reasons in words.", shapes.Explanation)},
    refuses=(NotFound, Conflict),
)
def explain_run(call: Call) -> Any:
    """Ask why a run is where it is.

    The answer comes from the code that hands out work.
    """
    return wording.explanation(call.web.master.read("explain_run", call.path["run_id"]))


@noun.operation(
    "POST",
    "/runs/{run_id}/cancel",
    body=Nothing,
    answers={202: Answer("The run as it is now; the order is being carried out.", shapes.Run)},
    refuses=(NotFound, Conflict, StoreFull),
)
def cancel_run(call: Call) -> Any:
    """Cancel one run.

    The task's other runs go on.
    """
    return wording.run(call.web.master.act("cancel_run", call.path["run_id"]))
