"""`python -m bench [LETTER …]`: one JSON line per figure; without letters all of them."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys

FIGURES = {
    "a": ("bench.latency", "run"),
    "b": ("bench.throughput", "run"),
    "c": ("bench.rpc", "run"),
    "d": ("bench.throughput", "run_submissions"),
    "e": ("bench.claim", "run"),
    "f": ("bench.fleet", "run"),
    "g": ("bench.streams", "run"),
    "h": ("bench.pages", "run"),
}


def main(letters: list[str]) -> int:
    """Print the figures named; 2 for an unknown letter."""
    unknown = [letter for letter in letters if letter not in FIGURES]
    if unknown:
        print(f"no such figure: {' '.join(unknown)}; there are {' '.join(FIGURES)}", file=sys.stderr)
        return 2
    print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}))
    for letter in letters or list(FIGURES):
        module, function = FIGURES[letter]
        for row in getattr(importlib.import_module(module), function)():
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
