"""The tables of the output database: one row per attempt, and its kept bytes in pieces.

An attempt's bytes are numbered from 0 over both streams. A piece of the head (part 0) stays for ever; pieces of the
tail (part 1) make room for newer ones once `output_limit` is reached.
"""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

outputs = Table(
    "outputs",
    metadata,
    Column("num", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("output_limit", Integer, nullable=False),
    Column("size", Integer, nullable=False),  # bytes known so far, gaps included
    Column("head", Integer, nullable=False),  # bytes in part 0; all that it may hold once it takes no more
    Column("tail", Integer, nullable=False),  # bytes in part 1
    Index("outputs_attempt", "run_id", "attempt", unique=True),
)

# `length` is written before `content`, so that ranges are read without touching the bytes' pages.
pieces = Table(
    "pieces",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("num", Integer, nullable=False),
    Column("part", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("length", Integer, nullable=False),
    Column("segments", LargeBinary, nullable=False),  # msgpack: [[stream, length], …], in order
    Column("content", LargeBinary, nullable=False),
    Index("pieces_range", "num", "start", "length", "part", unique=True),
)
