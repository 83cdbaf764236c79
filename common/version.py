"""The version of this source tree: the one place that says it; packaging reads it from here."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
