"""A real browser, headless: Debian's Chromium, driven through its own driver."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
DESKTOP, PHONE = 1280, 390
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Browser:
    """One window."""

    driver: Any

    def open(self, address: str, *, width: int = DESKTOP, scheme: str = "light") -> None:
        """Opens a page of ours, in a window so wide, and waits until its charts are drawn."""
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width <= PHONE},
        )
        self.driver.get(address)
        self.wait(lambda: self.run("return document.body.dataset.drawn"))

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def wait(self, for_what: Callable[[], Any]) -> Any:
        """The first true value that `for_what` returns."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := for_what()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Texts of shown elements that match `selector`."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter(e => e.checkVisibility()).map(e => e.textContent.trim())"
        )
        found: list[str] = self.run(script, selector)
        return found

    @property
    def errors(self) -> list[str]:
        """Errors on the browser's console."""
        return [
            entry["message"] for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]  # fmt: skip

    @property
    def requests(self) -> list[str]:
        """Addresses that pages requested since the last call, without the browser's own."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and not message["params"]["documentURL"].startswith("chrome:")
        ]

    def picture(self, path: Path) -> None:
        """The whole page, as a PNG."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return window.innerWidth")
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE},
        )
        self.driver.save_screenshot(str(path))


def start(profile: Path) -> Browser:
    """A browser whose files are in `profile`; without one the test is skipped."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--hide-scrollbars", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(DRIVER)
    return Browser(webdriver.Chrome(options=options, service=service))
