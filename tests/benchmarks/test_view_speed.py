"""How fast the live page follows a field, end to end in the browser: `make bench`."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")

from tests.reports.live import BASE, serving
from tests.reports.test_view_in_browser import Live

TURNED = """async ([batch, until]) => {
  const field = document.getElementById("text-batch");
  const before = document.querySelector("#answer [data-key=tpot]");
  field.value = batch;
  field.dispatchEvent(new Event("input"));
  const { dataset } = document.body;
  const done = { totals: () => !before.isConnected, all: () => dataset.drawn === dataset.state }[until];
  while (!done()) await new Promise((resolve) => setTimeout(resolve));
  await new Promise(requestAnimationFrame);
}"""


@pytest.mark.parametrize("view", ["overview", "network", "load"])
@pytest.mark.parametrize("until", ["totals", "all"])
def test_a_field_of_the_live_page(benchmark: Any, browser: Any, view: str, until: str) -> None:
    """Llama-3.1-70B: from the event to the frame with its totals (50 ms), or with all charts (200 ms)."""
    batches = count(2)
    with serving(BASE) as server:
        live = Live(browser, f"{server.address}&page.tab={view}")
        benchmark.pedantic(
            lambda: live.page.evaluate(TURNED, [str(next(batches)), until]),
            setup=live.settle,
            rounds=20,
            warmup_rounds=3,
        )
        live.page.close()
