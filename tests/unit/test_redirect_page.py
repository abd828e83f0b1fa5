"""The page on loopback to which a browser returns after a sign-in."""

import asyncio
import socket

import pytest

from tarsy_tasks.cli.redirect import RedirectPage


def test_a_connection_that_stays_open_ends_with_the_command(caplog: pytest.LogCaptureFixture) -> None:
    async def sign_in() -> socket.socket:
        page = RedirectPage(0)
        await page.open()
        async with page:
            port = int(page.address.rpartition(":")[2].partition("/")[0])
            idle = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port))
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /callback?code=x HTTP/1.1\r\nHost: x\r\n\r\n")
            page.is_answer = bool
            await page.wait(20)
            writer.close()
        return idle

    with asyncio.run(sign_in()):
        assert not caplog.records, caplog.text
