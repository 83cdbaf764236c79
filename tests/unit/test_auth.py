import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import auth
from common.errors import InvalidRequest


def test_a_key_pair_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.key"
    pair = auth.load_or_create_key_pair(path)
    assert auth.load_or_create_key_pair(path) == pair
    assert auth.is_key(pair.public_text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["agent.key"]


def test_a_key_file_is_private_whatever_the_umask_or_an_older_file_says(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        auth.save_key_pair(path, auth.new_key_pair())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_file_that_others_may_read_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k"
    auth.save_key_pair(path, auth.new_key_pair())
    path.chmod(mode)
    with pytest.raises(auth.BadKeyFile, match="chmod 600"):
        auth.load_key_pair(path)


@pytest.mark.parametrize("content", [b"", b"public x\nsecret y\n", b"\xff\xfe\x00", b"public " + b"0" * 40 + b"\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    auth.write_private(tmp_path / "k", content)
    with pytest.raises(auth.BadKeyFile, match="no key pair"):
        auth.load_key_pair(tmp_path / "k")


def test_halves_of_two_pairs_are_refused(tmp_path: Path) -> None:
    one, other = auth.new_key_pair(), auth.new_key_pair()
    auth.save_key_pair(tmp_path / "k", auth.KeyPair(public=one.public, secret=other.secret))
    with pytest.raises(auth.BadKeyFile, match="do not belong together"):
        auth.load_key_pair(tmp_path / "k")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "k"
    auth.write_private(path, b"old")
    with pytest.raises(TypeError):
        auth.write_private(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["k"]


def test_a_private_file_is_not_written_through_a_planted_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    (tmp_path / f".k.{os.getpid()}.new").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        auth.write_private(tmp_path / "k", b"secret")
    assert target.read_bytes() == b"untouched"


def test_secrets_do_not_show_in_repr() -> None:
    pair = auth.new_key_pair()
    token = auth.JoinToken(endpoint="tcp://m:1", server_key=pair.public_text, secret="hush")
    assert pair.secret.decode() not in repr(pair)
    assert "hush" not in repr(token)


@given(endpoint=st.text(min_size=1), secret=st.text(min_size=1))
def test_a_join_token_comes_back_as_it_was(endpoint: str, secret: str) -> None:
    token = auth.JoinToken(endpoint=endpoint, server_key="a" * 40, secret=secret)
    text = auth.encode_join_token(token)
    assert auth.decode_join_token(f" {text}\n") == token
    assert all(char.isalnum() or char in "._-" for char in text)


@pytest.mark.parametrize("text", ["", "hello", "muster2.abc"])
def test_what_is_no_join_token_says_where_to_get_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match="muster agent-token"):
        auth.decode_join_token(text)


@given(cut=st.integers(0, 40), junk=st.sampled_from(["", "!", "é", "A", "=="]))
def test_a_damaged_join_token_is_refused(cut: int, junk: str) -> None:
    token = auth.JoinToken(endpoint="tcp://master.example:4600", server_key="a" * 40, secret="s" * 43)
    text = auth.encode_join_token(token)
    damaged = text[: len("muster1.") + cut] + junk
    with pytest.raises(InvalidRequest, match="damaged"):
        auth.decode_join_token(damaged)


@pytest.mark.parametrize("body", ["[]", "null", '{"e":1}', '{"e":"x","k":"short","s":"y"}', '{"e":"","k":"","s":""}'])
def test_a_join_token_with_a_foreign_body_is_refused(body: str) -> None:
    import base64

    with pytest.raises(InvalidRequest, match="damaged"):
        auth.decode_join_token("muster1." + base64.urlsafe_b64encode(body.encode()).decode())


@pytest.mark.parametrize("text", ["", "a" * 39, "a" * 41, "é" * 40, "#" * 40, " " * 40])
def test_what_is_no_key(text: str) -> None:
    assert not auth.is_key(text)


def test_tokens_are_known_by_their_hash_alone() -> None:
    stored = auth.token_hash("secret")
    assert "secret" not in stored
    assert auth.token_hash("secret") == stored
    assert auth.token_hash("Secret") != stored
    assert auth.token_hash("\udcff") != stored
