"""A TCP link that a test can cut, hold and slow: a small relay in a thread of its own, real sockets on both sides.

`cut()` drops what is connected and refuses what comes; `hold()` keeps connections open and moves nothing (half-open);
`restore()` ends both. `bytes_per_s` throttles each direction. Nothing here knows what it carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

PIECE = 64 * 1024


class Link:
    """A relay from `127.0.0.1:port` to `target`; started by the constructor, ended by `close`."""

    def __init__(self, target: tuple[str, int], *, bytes_per_s: float | None = None) -> None:
        self.target = target
        self.bytes_per_s = bytes_per_s
        self.port = 0
        self._open = True
        self._loop = asyncio.new_event_loop()
        self._flowing: asyncio.Event
        self._writers: set[asyncio.StreamWriter] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()
        self._started.wait(10)

    @property
    def address(self) -> str:
        """`HOST:PORT` to connect to instead of the target."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Drop every connection and refuse new ones until `restore`."""
        self._call(self._cut())

    def hold(self) -> None:
        """Let nothing through, but keep connections open, until `restore`."""
        self._call(self._set_flowing(False))

    def restore(self) -> None:
        """Carry bytes again."""
        self._call(self._restore())

    def close(self) -> None:
        """Drop everything and end the thread."""
        if self._loop.is_running():
            self._call(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._listen())
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _listen(self) -> asyncio.Server:
        self._flowing = asyncio.Event()
        self._flowing.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _set_flowing(self, flowing: bool) -> None:
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _restore(self) -> None:
        self._open = True
        self._flowing.set()

    async def _cut(self) -> None:
        self._open = False
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._writers -= both

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._flowing.wait()
                writer.write(piece)
                await writer.drain()
                if self.bytes_per_s:
                    await asyncio.sleep(len(piece) / self.bytes_per_s)
        writer.transport.abort() if not self._open else writer.close()
