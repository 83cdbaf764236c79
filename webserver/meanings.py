"""What the fields of answers mean, where their declaration in `webserver.shapes` does not say it itself.

Looked up by shape and field, then by field alone; a test asks that every field of every answer has a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMON: Mapping[str, str] = {
    "agent": "the agent it is addressed to, or whose it is or was; null: nobody's yet",
    "attempt": "number of the try, from 1; 0: none has begun",
    "code": "stable name, for programs",
    "count": "how many",
    "detail": "more about it, in words; null: nothing to say",
    "ended_at": "null: not yet",
    "exit_code": "what the main process returned; null: it did not end by itself, or not yet",
    "hostname": "what the host calls itself",
    "id": "never reused",
    "items": "the entries of this page",
    "killed_by_us": "the signal was sent on an order: a timeout, a cancel, a stop rule",
    "leftovers": "processes that were still there when the main process had ended",
    "name": "for people",
    "next": "`cursor` of the following page; null: this is the last one",
    "outcome": "why the last attempt ended; null: none has",
    "output_bytes": "bytes written by the script, gaps included",
    "output_gaps": "what was not kept of the output",
    "output_sha256": "of the output that is kept; null before the end",
    "state": "where it is",
    "signal": "name of the signal that ended the main process, or null",
    "started_at": "when the first script began; null: none has",
    "task_id": "the task it belongs to",
    "text": "in words",
    "version": "of muster",
    "waiting_because": "why nothing begins, in words; null: nothing waits",
}

ENUMERATIONS: Mapping[str, str] = {
    "AgentState": "How the master sees an agent. `conflict`: two daemons use one identity.",
    "OnStop": "What happens to runs under way when the stop rule fires.",
    "Outcome": "Why an attempt ended.",
    "Role": "What a token may do.",
    "RunState": "Where a run is. `succeeded`, `failed`, `cancelled`, `skipped` and `expired` are final.",
    "TaskState": "What the runs of a task add up to.",
    "TokenKind": "A program's token, or a browser's session.",
}

OF_SHAPE: Mapping[str, Mapping[str, str]] = {
    "Agent": {
        "state": "how the master sees it; `conflict`: two daemons use its identity",
        "facts": "`os`, `arch`, `cpus`, `cpu_percent`, `load`, `memory_total`, `memory_used` …; any may be absent",
        "held": "attempts it holds now",
        "labels": "what people or its settings call it; for finding it",
        "last_seen_at": "null: never since it enrolled",
        "name": "unique; the host name unless told otherwise",
        "queues": "those it serves; null: all",
        "slots": "attempts at once",
    },
    "AgentToken": {"line": "the command to paste on the new host", "token": "the secret; it is shown this once"},
    "Attempt": {
        "cancel_requested_at": "when it was asked to end; null: it was not",
        "late": "told after the run had gone on without it, so it changed nothing",
        "run_id": "the run it is a try of",
        "started_at": "when the script began; null: it has not",
        "steps": "what the agent did to end it",
    },
    "Attention": {
        "agent_id": "the agent it is about, or null",
        "args": "what a sentence about it needs",
        "at": "since when",
        "name": "of the task or the agent, or null",
        "task_id": "the task it is about, or null",
    },
    "Event": {
        "data": "what it tells, as JSON",
        "event": "its kind",
        "id": "what `Last-Event-ID` names to go on behind it; 0: in the middle of a beginning, begin again",
    },
    "Explanation": {"run": "the run", "verdicts": "the reasons, the most telling first"},
    "FieldFault": {"field": "its name, such as `targets[2]`", "message": "what is wrong with it"},
    "FleetCounts": {
        "conflict": "agents whose identity two daemons use",
        "draining": "agents that finish what they hold and get nothing new",
        "held": "slots in use of agents that are online",
        "offline": "agents not heard for a while",
        "online": "agents that are heard",
        "slots": "of agents that are online",
        "total": "all agents",
    },
    "Group": {"names": "of the agents, at most 100", "count": "number of runs"},
    "Health": {"status": "`ok`"},
    "Leftover": {"command": "its command line", "pid": "its process id on the host"},
    "LoginLink": {"url": "open it in a browser"},
    "NewToken": {
        "about": "empty for API tokens",
        "kind": "`api`",
        "role": "what it may do",
        "expires_at": "null: never",
        "last_used_at": "null: never",
        "token": "the secret; it is shown this once",
    },
    "Overview": {"fleet": "the agents in numbers"},
    "Preview": {"plan": "the summary in words", "targets": "agents the task could go to", "summary": "in numbers"},
    "PreviewSummary": {
        "busy": "of the candidates, without a free slot",
        "candidates": "agents the task could go to",
        "conflict": "of the candidates, in this state",
        "draining": "of the candidates, in this state",
        "fail_count": "as asked for",
        "fail_rate": "as asked for",
        "offline": "of the candidates, in this state",
        "on_stop": "as asked for",
        "parallel": "as asked for",
    },
    "Problem": {
        "code": "stable name, for programs",
        "detail": "what happened and what to do, for people",
        "errors": "the faults of single fields",
        "status": "that of the answer",
        "title": "what errors with this code have in common",
        "type": "the code as an address",
    },
    "Readiness": {"problems": "what is in the way", "ready": "whether work can be accepted now"},
    "Reason": {"run_id": "the run at which the rule fired; null: none did"},
    "RetryRequest": {"only": "`failed`: every run that did not succeed; `all`: all runs"},
    "Run": {
        "claimed_at": "when an agent took it; null: none has",
        "duration": "of the last attempt; null before its end",
        "silent_since": "its agent has not been heard since; null: it is heard, or the run is not under way",
        "started_at": "when the script of the last attempt began; null: none has",
    },
    "RunAgent": {"name": "the agent's name"},
    "Silence": {"until": "null: it lasts"},
    "Step": {"text": "what it did"},
    "Target": {
        "agent": "the agent's id",
        "state": "how the master sees it",
        "name": "the agent's name",
        "verdict": "whether the task could begin there now, and why not",
    },
    "Task": {
        "count": "as asked for",
        "cwd": "where the script runs; null: a directory of its own",
        "fail_count": "stop once so many runs have failed; -1: no bound",
        "fail_rate": "stop once failed ÷ total exceeds this; null: no bound",
        "interpreter": "null: from the shebang, else /bin/sh",
        "on_stop": "what happens to runs under way when it stops",
        "output_limit": "bytes kept of an attempt's output; null: what the agents' settings say",
        "parallel": "runs held at once over the fleet; 0: no bound",
        "paused": "nothing further begins until it is resumed",
        "priority": "0 is the most urgent",
        "queue": "for `count`: the queue whose agents may take it",
        "reason": "why it stopped or was cancelled; null: it was not",
        "script_sha256": "of the script's bytes",
        "submitted_by": "the name of the token or session",
        "state": "what its runs add up to",
        "targets": "as asked for; null: none, or too many to be told in a list or among the events of everything",
    },
    "Token": {
        "about": "of a session, the browser and where it was logged in",
        "kind": "`api`: of a program; `session`: of a browser",
        "role": "what it may do",
    },
    "Verdict": {"since": "since when; null: not told"},
    "Verification": {"checked": "what was looked at, in numbers", "findings": "what is broken; empty: nothing"},
}


def of(shape: str, name: str) -> str | None:
    """What the field `name` of `shape` means; None when it is not told here."""
    return OF_SHAPE.get(shape, {}).get(name) or COMMON.get(name)
