"""Keys and tokens: CURVE key pairs and their files, join tokens, and how secrets are kept and compared.

A secret never leaves in the clear: key files are written 0600 in one step and refused when others may read them; the
master stores only the SHA-256 of a token and knows it by that. Keys are z85 text (40 characters) everywhere.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from common.errors import InvalidRequest, MusterError

KEY_LENGTH = 40
_RAW_KEY_BYTES = 32
_TOKEN_PREFIX = "muster1."


class BadKeyFile(MusterError):
    """The key file cannot be used."""

    code = "bad_key_file"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair as z85 bytes, the form the sockets take. The secret half is not shown by `repr`."""

    public: bytes
    secret: bytes

    @property
    def public_text(self) -> str:
        """The public half as text: what the master stores and what names a peer."""
        return self.public.decode("ascii")

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public_text!r})"


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a new host needs to enrol: the master's endpoint, its public key (z85) and a secret good for one use."""

    endpoint: str
    server_key: str
    secret: str

    def __repr__(self) -> str:
        return f"JoinToken(endpoint={self.endpoint!r}, server_key={self.server_key!r})"


def new_key_pair() -> KeyPair:
    """A fresh CURVE key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public, secret=secret)


def is_key(text: str) -> bool:
    """Whether `text` is a well-formed z85 key."""
    if len(text) != KEY_LENGTH:
        return False
    try:
        return len(z85.decode(text)) == _RAW_KEY_BYTES
    except (ValueError, KeyError, struct.error):
        return False


def write_private(path: Path, content: bytes) -> None:
    """Write `content` to `path` readable by the owner alone: all of it or nothing, also across a crash.

    The folder must exist. An existing file is replaced.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # the umask may only narrow, an older file may be wider
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_private(path: Path) -> bytes:
    """The bytes of a file that only its owner may read; raises `BadKeyFile` when others may, `FileNotFoundError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise BadKeyFile(
                f"{path} may be read by others (mode {mode:04o}): treat the secret as known, remove the file, "
                f"or, if nobody read it, run: chmod 600 {path}"
            )
        return file.read()


def save_key_pair(path: Path, pair: KeyPair) -> None:
    """Write a key pair, mode 0600: two lines, `public KEY` and `secret KEY`."""
    write_private(path, b"public " + pair.public + b"\nsecret " + pair.secret + b"\n")


def load_key_pair(path: Path) -> KeyPair:
    """The key pair in a file of `save_key_pair`; raises `BadKeyFile` or `FileNotFoundError`."""
    lines = dict(line.split(b" ", 1) for line in read_private(path).splitlines() if b" " in line)
    public, secret = lines.get(b"public", b"").strip(), lines.get(b"secret", b"").strip()
    if not (is_key(public.decode("ascii", "replace")) and is_key(secret.decode("ascii", "replace"))):
        raise BadKeyFile(f"{path} holds no key pair: it needs the lines `public KEY` and `secret KEY`.")
    if zmq.curve_public(secret) != public:
        raise BadKeyFile(f"{path} holds two keys that do not belong together: restore it from a backup.")
    return KeyPair(public=public, secret=secret)


def load_or_create_key_pair(path: Path) -> KeyPair:
    """The key pair in `path`; a fresh one is made and saved when there is no such file."""
    try:
        return load_key_pair(path)
    except FileNotFoundError:
        pair = new_key_pair()
        save_key_pair(path, pair)
        return pair


def encode_join_token(token: JoinToken) -> str:
    """The token as one word without characters special to a shell."""
    body = json.dumps({"e": token.endpoint, "k": token.server_key, "s": token.secret}, separators=(",", ":"))
    return _TOKEN_PREFIX + base64.urlsafe_b64encode(body.encode()).decode("ascii").rstrip("=")


def decode_join_token(text: str) -> JoinToken:
    """The token in a word made by `encode_join_token`; raises `InvalidRequest` naming the field `join`."""
    word = text.strip()
    if not word.startswith(_TOKEN_PREFIX):
        raise InvalidRequest.of("join", "This is no join token: make one with `muster agent-token`.")
    coded = word.removeprefix(_TOKEN_PREFIX)
    try:
        body = json.loads(base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True))
        parts = [body["e"], body["k"], body["s"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged_token() from error
    if not all(type(part) is str and part for part in parts) or not is_key(parts[1]):
        raise _damaged_token()
    return JoinToken(endpoint=parts[0], server_key=parts[1], secret=parts[2])


def _damaged_token() -> InvalidRequest:
    return InvalidRequest.of("join", "This join token is damaged: copy it again, whole.")


def token_hash(token: str) -> str:
    """What is stored of a token: its SHA-256 in hexadecimal. Tokens hold 256 random bits, so no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
