"""Every code the master can tell has a sentence in pages and in scripts."""

from __future__ import annotations

import re
from pathlib import Path

from master import sentences
from webserver import said

SCRIPT = (Path(said.__file__).parent / "static/js/said.js").read_text("utf-8")


def test_every_verdict_is_said_in_pages_and_scripts() -> None:
    in_scripts = set(re.findall(r"^  (\w+): \(", SCRIPT, re.MULTILINE))
    assert set(said._WAITING) == in_scripts == set(sentences.VERDICTS)


def test_every_reason_is_said_in_pages_and_scripts() -> None:
    source = Path(said.__file__).read_text("utf-8")
    for code in sentences.REASONS:
        assert f'"{code}"' in source and f'"{code}"' in SCRIPT, code
