"""The head of a request: only what every reader of HTTP frames alike is accepted.

A proxy and this server must agree on where a request ends, else a second one hides in the body of the first. So lines
that readers split, join or skip differently are refused, and the length of the body may be told in one way only.
"""

from __future__ import annotations

import re
from io import BufferedIOBase
from typing import Any

from gevent import pywsgi

HEAD_MOST = 64 * 1024
"""Bytes of all headers together."""
FIELDS_MOST = 100
_REQUEST_LINE = re.compile(r"[!-~]+ [!-~\x80-\xff]+ HTTP/[0-9.]+\r?\n")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)\r?\n")


def check_request_line(line: str) -> None:
    """Raises `ValueError` for a first line that is not method, target and version with a single space between."""
    if not _REQUEST_LINE.fullmatch(line):
        raise ValueError("a first line that readers could split differently")


def read_headers(stream: BufferedIOBase, *_: Any) -> pywsgi.OldMessage:
    """The headers at the start of `stream`, as gevent's handler keeps them; raises `ValueError` for unsound ones."""
    headers = pywsgi.OldMessage()
    left = HEAD_MOST
    for _number in range(FIELDS_MOST + 1):
        line = stream.readline(left + 1)
        left -= len(line)
        if left < 0:
            raise ValueError("headers that are too long")
        if line in (b"\r\n", b"\n"):
            _check_framing(headers)
            return headers
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ValueError("a header line that readers could take differently, or that broke off")
        headers[field[1].decode("ascii")] = field[2].decode("latin-1").strip(" \t")
    raise ValueError("too many headers")


def _check_framing(headers: pywsgi.OldMessage) -> None:
    """One way to tell the body's length, and one that is understood here."""
    codings = headers.get_all("transfer-encoding") or []
    lengths = headers.get_all("content-length") or []
    if codings and lengths:
        raise ValueError("both a Transfer-Encoding and a Content-Length")
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        raise ValueError("a Transfer-Encoding other than chunked")
    if len(set(lengths)) > 1 or any(not (length.isascii() and length.isdigit()) for length in lengths):
        raise ValueError("more than one Content-Length, or one that is no number")
