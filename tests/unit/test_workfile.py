"""What runs a script, by its first bytes."""

from __future__ import annotations

import pytest

from agent.workfile import BadShebang, interpreter_of


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"", ("/bin/sh",)),
        (b"echo hello\n", ("/bin/sh",)),
        (b" #!/bin/bash\n", ("/bin/sh",)),
        (b"#!/bin/bash", ("/bin/bash",)),
        (b"#!/bin/bash\n", ("/bin/bash",)),
        (b"#! /bin/bash -eu \n", ("/bin/bash", "-eu")),
        (b"#!\t/bin/bash\t-e -u\n", ("/bin/bash", "-e -u")),
        (b"#!/usr/bin/env python3\n", ("/usr/bin/env", "python3")),
        (b"#!/usr/bin/env -S python3 -u\n", ("/usr/bin/env", "-S python3 -u")),
        (b"\xef\xbb\xbf#!/usr/bin/python3\n", ("/usr/bin/python3",)),
        (b"#!/opt/gr\xc3\xbcn\n", ("/opt/grün",)),
        (b"#!/opt/\xff\n", ("/opt/\udcff",)),
        (b"#!/bin/sh\n\0\r\n", ("/bin/sh",)),
    ],
)
def test_interpreter(script: bytes, expected: tuple[str, ...]) -> None:
    assert interpreter_of(script) == expected


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (b"#!/bin/sh\r\n", "CRLF"),
        (b"#!/bin/sh\r", "CRLF"),
        (b"\xef\xbb\xbf#!/usr/bin/env python3\r\n", "CRLF"),
        (b"#!", "without an interpreter"),
        (b"#! \t \n/bin/sh", "without an interpreter"),
        (b"#!/bin/\0sh\n", "NUL"),
        (b"#!/" + b"x" * 5000, "does not end within 4096 bytes"),
    ],
)
def test_first_lines_that_name_nothing(script: bytes, words: str) -> None:
    with pytest.raises(BadShebang, match=words):
        interpreter_of(script)
