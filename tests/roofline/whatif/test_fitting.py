"""What would make a scenario fit: each answer is simulated."""

from __future__ import annotations

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.schedule import Settings
from roofline.whatif.fitting import what_fits


def test_what_fits_is_the_fewest_devices_that_do() -> None:
    model, card = load_model("qwen2.5-32b"), load_hardware("rtx-4090")
    assert list(what_fits(Scenario(model, card))) == ["--quant awq", "--tp 4"]
    fits = [
        bool(analyze(Scenario(model, card, settings=Settings(parallel=Parallelism(tensor=degree)))).memory.fits)
        for degree in (2, 4)
    ]
    assert fits == [False, True]
