"""Energy and cost at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Run

PLAIN = ("llama-3.1-8b", "--hw", "h100-sxm", "--batch", 8)


@pytest.fixture
def ok(run: Run) -> Callable[..., str]:
    def call(*args: object) -> str:
        status, out, err = run(*args)
        assert status == 0, err
        return out

    return call


def document(ok: Callable[..., str], *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("analyze", *args, "--format", "json"))
    return found


def test_analysis_has_energy_and_cost_per_token(ok: Callable[..., str]) -> None:
    text = ok("analyze", *PLAIN)
    assert "J (" in text
    assert "W per device (modelled)" in text
    assert "3.945 USD/h (2026-08-26)" in text
    found = document(ok, *PLAIN)
    assert found["energy"]["j_per_token"] < found["energy"]["expected_j_per_token"]["mid"]
    assert found["energy"]["expected_power_w"]["mid"] < 700
    price = found["cost"]["prices"][0]
    assert (price["usd_per_hour"], price["date"], found["cost"]["devices"]) == (3.945, "2026-08-26", 1)
    assert "runpod.io" in price["source"]


def test_a_given_price_doubles_the_cost(ok: Callable[..., str]) -> None:
    once, twice = (document(ok, *PLAIN, "--price", price)["cost"] for price in (1.5, 3))
    assert twice["usd_per_million_tokens"] == pytest.approx(2 * once["usd_per_million_tokens"])
    assert once["prices"][0] == {"hardware": "h100-sxm", "usd_per_hour": 1.5, "date": None, "source": None}
    assert "1.5 USD/h\n" in ok("analyze", *PLAIN, "--price", 1.5)


def test_missing_energy_and_price_are_absent(ok: Callable[..., str]) -> None:
    text = ok("analyze", "llama-3.1-8b", "--hw", "mi210")
    assert "energy: at most" in text
    assert "cost:" not in text
    found = document(ok, "llama-3.1-8b", "--hw", "m3-max")
    assert found["cost"] is None
    assert set(found["energy"].values()) == {None}
    assert "energy:" not in ok("analyze", "llama-3.1-8b", "--hw", "m3-max")
    assert document(ok, "bert-base", "--hw", "h100-sxm")["energy"]["j_per_token"] is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("explain", "cost", "llama-3.1-8b", "--hw", "mi210"), "give one, in USD per device hour (--price)"),
        (("explain", "energy", "llama-3.1-8b", "--hw", "mi210"), "no energy figures"),
        (("analyze", *PLAIN, "--price", "cheap"), "price takes a number"),
        (("sweep", "llama-3.1-8b", "--hw", "mi210", "--over", "batch=1,2", "--metrics", "cost"), "--price"),
    ],
)
def test_mistakes(run: Run, args: tuple[object, ...], message: str) -> None:
    status, _, err = run(*args)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def test_explanations_and_definitions(ok: Callable[..., str]) -> None:
    text = ok("explain", "energy", *PLAIN, "-v")
    assert "at most devices x TDP x time" in text
    assert "energy.memory of h100-sxm from" in " ".join(text.split())
    assert "USD/h (as given)" in " ".join(ok("explain", "cost", *PLAIN, "--price", 2).split())
    assert "cost.processed" in ok("explain", "--definitions")


def test_comparisons_have_energy_and_cost(ok: Callable[..., str]) -> None:
    text = ok("compare", "llama-3.1-8b --hw h100-sxm", "--hw mi210")
    assert "Energy and cost" in text
    assert "at most" in text
    assert "Energy and cost" not in ok("compare", "llama-3.1-8b --hw m3-max", "--batch 2")


def test_emissions_are_proportional_to_the_intensity(ok: Callable[..., str], run: Run) -> None:
    once, twice = (document(ok, *PLAIN, "--carbon", given)["energy"] for given in (200, 400))
    assert twice["g_co2e_per_million_tokens"] == pytest.approx(2 * once["g_co2e_per_million_tokens"])
    for load in ((), ("--users", 8)):
        assert "g CO2e per million tokens" in " ".join(ok("answer", *PLAIN[:3], *load, "--carbon", "france").split())
    status, _, err = run("serve", *PLAIN[:3], "--sessions", 4, "--carbon", 400)
    assert status == 2
    assert "omit carbon" in err
