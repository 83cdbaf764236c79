"""How a script's bytes say what runs them: the first line, read as the kernel reads it, and never as text.

Pure. The script itself is never changed. Standard library only, and small: the shepherd imports it.
"""

from __future__ import annotations

DEFAULT_INTERPRETER = ("/bin/sh",)
_SHEBANG_MAX = 4096
_BOM = b"\xef\xbb\xbf"


class BadShebang(ValueError):
    """The first line names no interpreter that could be started; the text says why and what to do."""


def interpreter_of(script: bytes) -> tuple[str, ...]:
    """The command that runs this script, its path to be appended: from the shebang, else `/bin/sh`.

    As in the kernel, what follows the interpreter is one single argument (so `env -S` splits it itself). A byte-order
    mark before the shebang, which the kernel would stumble over, is passed by. Raises BadShebang.

    >>> interpreter_of(b"#!/usr/bin/env -S python3 -u\\nprint()")
    ('/usr/bin/env', '-S python3 -u')
    """
    if script.startswith(_BOM):
        script = script[len(_BOM) :]
    if not script.startswith(b"#!"):
        return DEFAULT_INTERPRETER
    line, newline, _ = script[2:_SHEBANG_MAX].partition(b"\n")
    if not newline and len(script) >= _SHEBANG_MAX:
        raise BadShebang(f"The script's first line begins with #! but does not end within {_SHEBANG_MAX} bytes.")
    if line.endswith(b"\r"):
        raise BadShebang(
            "The script has Windows line ends (CRLF): its first line would name an interpreter with a carriage "
            "return at the end, which does not exist. Save it with LF line ends, or submit it with `normalize`."
        )
    if b"\0" in line:
        raise BadShebang("The script's first line begins with #! but holds a NUL byte, so it names no interpreter.")
    words = line.split(None, 1)
    if not words:
        raise BadShebang("The script's first line is #! without an interpreter behind it.")
    return tuple(word.strip().decode("utf-8", "surrogateescape") for word in words)
