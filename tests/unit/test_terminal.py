"""No text may steer a terminal, and none is lost."""

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from muster.terminal import cells, cut, fold, neutralise, pad, plain, visible

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
NASTY = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x1b[]mHJ;0123456789\x07\x9b\x9d\r\n\t\x7f\u202e\u200b"),
    ),
    max_size=40,
)


def harmless(text: str, allowed: str) -> bool:
    return all(c in allowed or unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in text)


@given(NASTY)
def test_only_colours_are_left_of_what_a_terminal_obeys(text: str) -> None:
    safe = neutralise(text)
    assert harmless(COLOUR.sub("", safe), "\t")
    if COLOUR.search(safe):
        assert safe.endswith("\x1b[0m")


@given(NASTY)
def test_without_colours_nothing_is_left(text: str) -> None:
    assert harmless(neutralise(text, colours=False), "\t")
    assert harmless(plain(text), "")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=40))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert neutralise(text) == text
    assert plain(text) == text


@given(NASTY)
def test_once_is_enough(text: str) -> None:
    safe = neutralise(text, colours=False)
    assert neutralise(safe, colours=False) == safe


def test_examples_of_what_is_shown_instead() -> None:
    assert neutralise("a\x1b[31mred\x1b[0m\tb") == "a\x1b[31mred\x1b[0m\tb\x1b[0m"
    assert neutralise("a\x1b[31mred", colours=False) == "ared"
    assert neutralise("\x1b[2J\x1b]0;title\x07") == "^[[2J^[]0;title^G"
    assert neutralise("\x9b2J \u202eabc \ud800") == "<U+009B>2J <U+202E>abc <U+D800>"
    assert plain("name\nwith\x1b[1mlines") == "name^Jwith^[[1mlines"
    assert (visible("\x7f"), visible("\0")) == ("^?", "^@")


def test_a_progress_bar_is_folded_to_its_last_state() -> None:
    assert fold(b"10%\r20%\r100%") == b"100%"
    assert fold(b"100%\r") == b"100%"
    assert fold(b"dos line\r") == b"dos line"
    assert fold(b"\r\r") == b""
    assert fold(b"plain") == b"plain"


def test_texts_are_measured_in_columns() -> None:
    assert [cells(text) for text in ("", "abc", "中文", "é", "e\u0301", "a…")] == [0, 3, 4, 1, 1, 2]
    assert [pad("中", 4), pad("abcdef", 4)] == ["中  ", "abcdef"]
    assert [cut("中文字", width) for width in (6, 5, 4, 1, 0)] == ["中文字", "中文…", "中…", "…", "…"]
    assert cut("abcdef", 4) == "abc…"
