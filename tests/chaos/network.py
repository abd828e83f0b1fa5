"""The network between Redis and those who use it, which can be cut without anybody being told."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["Network"]

_CHUNK_BYTES = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Network:
    """A TCP proxy on a port of 127.0.0.1. While it is cut, connections stay open and nothing passes.

    Args:
        upstream_port: Where it leads.
        tls: The certificates it presents and requires; None for plain TCP.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, upstream_port: int, tls: ssl.SSLContext | None = None) -> None:
        self._upstream_port = upstream_port
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._serving = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()

    @contextmanager
    def running(self) -> Iterator["Network"]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="network")
        thread.start()
        self._serving.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stopped.set)
            thread.join(10)

    def cut(self) -> None:
        """From now on nothing passes, either way; also not on new connections."""
        self._loop.call_soon_threadsafe(self._passable.clear)

    def heal(self, *, reset: bool) -> None:
        """Let everything pass again.

        Args:
            reset: Whether the connections of before are reset, and what was under way is gone; else it arrives late.
        """
        self._loop.call_soon_threadsafe(self._heal, reset)

    def _heal(self, reset: bool) -> None:
        if reset:
            for writer in self._open.copy():
                with suppress(OSError):  # closed meanwhile
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
        self._passable.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped, self._passable = asyncio.Event(), asyncio.Event()
        self._passable.set()
        async with await asyncio.start_server(self._connect, sock=self._listener):
            self._serving.set()
            await self._stopped.wait()
            self._heal(reset=True)
        # Also those that were let in just now and have not begun.
        if served := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(served)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped.is_set():
            writer.close()
            return
        self._open.add(writer)
        try:
            await self._passable.wait()
            with suppress(OSError):
                if self._tls is None:
                    await self._lead(reader, writer)
                else:
                    await self._lead_tls(writer, self._tls)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        self._open.add(redis_writer)
        try:
            await asyncio.gather(self._pass_on(reader, redis_writer), self._pass_on(redis_reader, writer))
        finally:
            self._open.discard(redis_writer)
            redis_writer.close()

    async def _lead_tls(self, raw: asyncio.StreamWriter, tls: ssl.SSLContext) -> None:
        """By the loop itself: a server that speaks TLS closes no connection in mid-handshake, and a writer that is
        upgraded breaks when the other side hangs up at once."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = await self._loop.start_tls(raw.transport, protocol, tls, server_side=True)
        if transport is None:
            return  # it hung up after the handshake
        protocol.connection_made(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            await self._lead(reader, writer)
        finally:
            writer.close()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await self._passable.wait()
                if target.is_closing():
                    break
                target.write(data)
                await target.drain()
        target.close()
