"""Chromium, with rhea in a page: AMQP over WebSocket as browsers do it, and only for pages that may.

Owns a small web server with the page and the library, and one run of the browser per page. The browser ends when the
page has told what it saw. Skipped where Chromium or Node.js is not installed, or Chromium cannot run.
"""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import PIPE
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web

import weft
from weft.config import parse

from .test_rhea import HERE, installed  # noqa: F401 - the fixture

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LOADS_S = 40.0
TELLS_S = 40.0

pytestmark = [
    pytest.mark.weft_only,
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js is not installed (apt-get install nodejs npm)"),
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed (apt-get install chromium)"),
]


class Shop:
    """The web server that the page comes from."""

    def __init__(self, library: Path) -> None:
        self.loaded = asyncio.Event()
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self._library = library
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_get("/rhea.js", self._rhea)
        app.router.add_post("/told", self._on_told)
        self._runner = web.AppRunner(app)

    async def start(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _page(self, _request: web.Request) -> web.FileResponse:
        self.loaded.set()
        return web.FileResponse(HERE / "page.html")

    async def _rhea(self, _request: web.Request) -> web.FileResponse:
        return web.FileResponse(self._library)

    async def _on_told(self, request: web.Request) -> web.Response:
        self.told.put_nowait(await request.text())
        return web.Response()


async def visit(shop: Shop, url: str, folder: Path) -> str:
    """What the page tells first."""
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    browser = await asyncio.create_subprocess_exec(
        str(BROWSER), *options, f"--user-data-dir={folder}", url, stdout=PIPE, stderr=PIPE
    )
    try:
        try:
            await asyncio.wait_for(shop.loaded.wait(), LOADS_S)
        except TimeoutError:
            pytest.skip("Chromium is installed and does not load a page here")
        return await asyncio.wait_for(shop.told.get(), TELLS_S)
    finally:
        browser.kill()
        await browser.communicate()


@pytest.mark.parametrize("may", [True, False])
async def test_a_page_speaks_amqp(installed: Path, tmp_path: Path, may: bool) -> None:  # noqa: F811 - the fixture
    shop = Shop(installed / "node_modules" / "rhea" / "dist" / "rhea-umd.js")
    origin = await shop.start()
    sites = f'["{origin}"]' if may else "[]"
    try:
        async with weft.Node(configuration=parse(f'[http]\naddress = "127.0.0.1:0"\norigins = {sites}')) as node:
            words = quote(f"ws://127.0.0.1:{node.http_port}/amqp shop")
            told = await visit(shop, f"{origin}/#{words}", tmp_path / "browser")
            assert told == ("received from the page" if may else "cut off")
    finally:
        await shop.stop()
