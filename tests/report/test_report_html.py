"""The page in a real browser: loads nothing, runs nothing, fits a phone, and says its parts in order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright

from gpuwatch.report import ReportData, render_html
from tests.report import sample

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
CASES = {"incident": sample.report, "healthy": sample.healthy, "unknown": sample.undecided, "hostile": sample.hostile}

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (Debian package chromium)")


async def _look(page: Page, url: str) -> dict[str, object]:
    """Open the page and say what it asked for, what it ran and how wide it is."""
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    await page.goto(url)
    width = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return {
        "asked": asked,
        "width": width,
        "pwned": await page.evaluate("window.pwned === undefined ? 0 : 1"),
        "foreign": await page.evaluate("document.querySelectorAll('script, img, iframe, object, link, base').length"),
        "heads": await page.evaluate("[...document.querySelectorAll('h2')].map(h => h.textContent)"),
        "title": await page.evaluate("document.querySelector('h1').textContent"),
        "dark": await page.evaluate("getComputedStyle(document.body).backgroundColor"),
    }


async def _tour(folder: Path) -> dict[tuple[str, int, str], dict[str, object]]:
    """Every case in a wide, a phone-sized and a dark window."""
    seen = {}
    async with async_playwright() as p:
        browser = await p.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        for name, case in CASES.items():
            path = folder / f"{name}.html"
            path.write_text(render_html(case()), "utf-8")
            for width, height, scheme in ((1400, 900, "light"), (390, 844, "light"), (390, 844, "dark")):
                context = await browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
                )
                seen[name, width, scheme] = await _look(await context.new_page(), path.as_uri())
                await context.close()
        await browser.close()
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, int, str], dict[str, object]]]:
    """What Chromium saw of each page."""
    return asyncio.run(_tour(tmp_path_factory.mktemp("report")))


def test_nothing_is_loaded_from_anywhere(seen: dict[tuple[str, int, str], dict[str, object]]) -> None:
    """The only request is for the page itself."""
    for key, what in seen.items():
        asked = what["asked"]
        assert isinstance(asked, list)
        assert [url.partition(":")[0] for url in asked] == ["file"], (key, asked)


def test_hostile_strings_run_nothing_and_add_no_element(seen: dict[tuple[str, int, str], dict[str, object]]) -> None:
    """Names of models, tenants, requests, changes and sources are text, in every page."""
    for key, what in seen.items():
        assert (what["pwned"], what["foreign"]) == (0, 0), key


def test_a_phone_never_scrolls_sideways(seen: dict[tuple[str, int, str], dict[str, object]]) -> None:
    """No page is wider than its window, hostile strings without a space included."""
    for key, what in seen.items():
        scroll, window = what["width"]  # type: ignore[misc]
        assert scroll <= window, key


def test_dark_is_dark(seen: dict[tuple[str, int, str], dict[str, object]]) -> None:
    """The page follows the reader's colour scheme."""
    assert seen["incident", 390, "dark"]["dark"] != seen["incident", 390, "light"]["dark"]


def test_the_parts_come_in_the_order_of_need(seen: dict[tuple[str, int, str], dict[str, object]]) -> None:
    """What happened, what it rests on, what it is not, what to do, how to check."""
    assert seen["incident", 1400, "light"]["heads"] == [
        "Timeline", "State over time", "Evidence over time", "The slowest requests, stage by stage", "Evidence",
        "Symptoms of it", "What it is not", "What else it could be", "Blind spots", "What to do", "What not to do",
        "How to confirm", "How to replay",
    ]  # fmt: skip
    assert seen["healthy", 1400, "light"]["title"] == "No incident in this record"
    assert "not decided" in str(seen["unknown", 1400, "light"]["title"])


def test_impact_stands_before_the_cause() -> None:
    """What users felt comes first, as before → now."""
    page = render_html(sample.report())
    assert page.index("99.2 % →") < page.index("drains and refills every 18 s") < page.index("Timeline</h2>")


def test_hours_of_data_stay_small() -> None:
    """A report over hours is no bigger than one over minutes: drawings are decimated, strips are bounded."""
    assert len(render_html(_six_hours())) < 400_000


def _six_hours() -> ReportData:
    import msgspec
    import numpy as np

    data = sample.report()
    at = sample.START + np.arange(6 * 3600, dtype=float)
    noise = np.random.default_rng(0)
    long = {k: msgspec.structs.replace(s, at=at, values=noise.uniform(0, 1, len(at))) for k, s in data.series.items()}
    states = tuple(sample.state_at(t) for t in at.tolist())
    return msgspec.structs.replace(data, series=long, states=states, until_at=float(at[-1]))


def test_colour_is_never_alone() -> None:
    """Every coloured piece of a strip carries its answer in words, and every stage is in the key."""
    page = render_html(sample.report())
    pieces = re.findall(r'<span class="piece [^"]*" style="[^"]*" title="([^"]*)">([^<]*)</span>', page)
    assert pieces
    assert all(title == text for title, text in pieces)
    for stage in ("queue", "prefill", "decode"):
        assert re.search(rf"<li><i class=\"\w+\"></i>{stage}</li>", page)
