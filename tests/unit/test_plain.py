"""Untrusted text: nothing in it may act, everything in it can be seen."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webserver.plain import plain


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("web-1", "web-1"),
        ("数据库 备份", "数据库 备份"),
        ("\x1b[31mred", "␛[31mred"),
        ("a\r\nb\tc", "a␍\nb\tc"),
        ("\x00\x7f", "␀␡"),
        ("safe\u202eexe.txt", "safe⟦202E⟧exe.txt"),
        ("\x9b2J", "⟦009B⟧2J"),
        ("zero\u200bwidth", "zero⟦200B⟧width"),
    ],
)
def test_what_would_act_is_shown(given_text: str, shown: str) -> None:
    assert plain(given_text) == shown


@given(st.text())
def test_nothing_that_acts_is_left(text: str) -> None:
    shown = plain(text)
    assert not any(unicodedata.category(c) == "Cc" and c not in "\t\n" for c in shown)
    assert not any(
        unicodedata.bidirectional(c) in ("LRO", "RLO", "LRE", "RLE", "PDF", "LRI", "RLI", "FSI", "PDI") for c in shown
    )
    assert plain(shown) == shown
