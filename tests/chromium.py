"""The browser that pages are tested with: the system's Chromium, without a window."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

__all__ = ["Browser", "Page", "open_browser"]

try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ImportError:  # playwright has no wheels for some platforms
    sync_playwright = None  # pyright: ignore[reportAssignmentType]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Under root, as in many containers, Chromium runs without its sandbox or not at all; and /dev/shm is small there.
_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
# The address bar's pages, in a process of their own, cost each window half a second.
_OPTIONS.append("--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup")


@contextmanager
def open_browser() -> Iterator["Browser"]:
    """A running browser. Skips the test where there is none, or fails it under CI."""
    if sync_playwright is None:
        _give_up("playwright is not installed")
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        _give_up(f"none of {', '.join(_NAMES)} is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        yield browser
        browser.close()


def _give_up(reason: str) -> NoReturn:
    reason = f"the pages cannot be looked at: {reason}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
