"""The REST API, one module a noun. `NOUNS` lists them all; routes and the OpenAPI document come from it."""

from __future__ import annotations

from webserver.api import access, agent_tokens, agents, events, output, overview, runs, tasks, verify

NOUNS = (
    overview.noun,
    tasks.noun,
    runs.noun,
    output.noun,
    events.noun,
    agents.noun,
    agent_tokens.noun,
    access.noun,
    verify.noun,
)
