"""How fast the live page follows a field, end to end in the browser: `make bench`."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")

from tests.reports.live import BASE, Live, serving

TURNED = """async ([batch, until]) => {
  const field = document.getElementById("text-batch");
  const before = document.querySelector("#answer [data-key=tpot]");
  field.value = batch;
  field.dispatchEvent(new Event("input"));
  const { dataset } = document.body;
  const done = { totals: () => !before.isConnected, all: () => dataset.drawn === dataset.state }[until];
  const { port1, port2 } = new MessageChannel();  // setTimeout would wait for 4 ms
  while (!done()) await new Promise((resolve) => { port1.onmessage = resolve; port2.postMessage(0); });
  await new Promise(requestAnimationFrame);
}"""

PAINTED = "() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 100)))"
"""Waits until the charts of the state before are on the screen, as they are for a person who turns a field."""


@pytest.mark.parametrize("view", ["overview", "network", "load"])
@pytest.mark.parametrize("until", ["totals", "all"])
def test_a_field_of_the_live_page(benchmark: Any, browser: Any, view: str, until: str) -> None:
    """Llama-3.1-70B: from the event to the frame with its totals (50 ms), or with all charts (200 ms)."""
    batches = count(20)
    with serving(BASE) as server:
        live = Live(browser, f"{server.address}&page.tab={view}")

        def painted() -> None:
            live.settle()
            live.page.evaluate(PAINTED)

        benchmark.pedantic(
            lambda: live.page.evaluate(TURNED, [str(next(batches)), until]),
            setup=painted,
            rounds=20,
            warmup_rounds=3,
        )
        live.page.close()
