"""Techniques of one's own: registered from a module, and entries of files in `ROOFLINE_SPECS`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roofline import RooflineError, Scenario, UnknownNameError, load_hardware, load_model
from roofline.techniques import apply_techniques, find_technique, names, register, techniques
from roofline.whatif.study import make_study
from tests.extensions.conftest import LoadModule, decode_time, put

OURS = """
from roofline import Scenario
from roofline.specs.formats import grouped
from roofline.techniques import Level, Parameter, Price, Technique
from roofline.techniques.quantization import stored, with_formats

ENTRY = Technique(
    name="six-bit-cache",
    title="KV cache in six bits",
    level=Level.MODEL,
    price=Price.CALIBRATION,
    reference="ours",
    effect="Fewer bytes of KV cache.",
    slot="KV format",
    covers=("Sixpack",),
    requires=("KV cache",),
    parameters=(Parameter("group", "elements that share a scale", 64, 1, 65536),),
)

def six_bit_cache(scenario: Scenario, name: str, *, group: int) -> Scenario:
    return with_formats(scenario, name, kv=stored(name, grouped(BITS, group, scale=16), BITS, "code"))
"""

ENTRIES = """
techniques:
  three-quarters:
    title: A prompt without its last quarter
    level: data
    price: lossy
    reference: ours
    effect: Fewer tokens.
    slot: prompt
    function: data.shorter_prompt
    parameters: {keep: {default: 0.75, low: 0.1, high: 1, meaning: fraction kept}}
"""


def kv_bits(techniques: tuple[str, ...]) -> float:
    scenario = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), techniques=techniques)
    assert scenario.precision is not None
    return scenario.precision.kv.bits


def test_a_technique_of_a_module_is_in_the_catalogue_until_it_is_undone(module: LoadModule) -> None:
    ours = module(f"BITS = 6{OURS}")
    with register(ours.ENTRY, ours.six_bit_cache):
        assert find_technique("Sixpack").name == "six-bit-cache"
        assert kv_bits(("six-bit-cache:group=128",)) == 6 + 16 / 128
        assert kv_bits(("sixpack",)) == 6 + 16 / 64
        with pytest.raises(RooflineError, match=r"six-bit-cache: group must be between 1 and 65536, got '0'"):
            kv_bits(("six-bit-cache:group=0",))
        with pytest.raises(RooflineError, match="conflicts with"):
            kv_bits(("six-bit-cache", "fp8-kv"))
    with pytest.raises(UnknownNameError, match="unknown technique 'six-bit-cache'"):
        kv_bits(("six-bit-cache",))
    assert "sixpack" not in names()


def test_a_technique_applies_after_the_shipped_ones_of_its_level(module: LoadModule) -> None:
    ours, shipped = module(f"BITS = 6{OURS}"), list(techniques())
    with register(ours.ENTRY, ours.six_bit_cache):
        place = list(techniques()).index("six-bit-cache")
        before, after = techniques()[shipped[place - 1]], techniques()[shipped[place]]
        assert (before.level, after.level) == ("model", "data")
    assert list(techniques()) == shipped


def test_replacing_changes_the_answer_for_the_same_scenario(module: LoadModule) -> None:
    six, five = module(f"BITS = 6{OURS}"), module(f"BITS = 5{OURS}")
    plain = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))

    def bits() -> float:
        precision = apply_techniques(plain, ["six-bit-cache"]).precision
        assert precision is not None
        return precision.kv.bits

    first = register(six.ENTRY, six.six_bit_cache)
    try:
        assert bits() == 6.25
        with pytest.raises(RooflineError, match=r"^the technique 'six-bit-cache' exists already; replace=True"):
            register(five.ENTRY, five.six_bit_cache)
        second = register(five.ENTRY, five.six_bit_cache, replace=True)
        assert bits() == 5.25
        first.undo()  # the later one holds whatever happens to those before
        assert bits() == 5.25
        second.undo()
        second.undo()
    finally:
        first.undo()
    with pytest.raises(UnknownNameError):
        bits()


def test_a_shipped_technique_can_be_replaced(module: LoadModule) -> None:
    ours, shipped = module(f"BITS = 6{OURS}"), kv_bits(("fp8-kv",))
    changed = ours.Technique(**{**vars_of(ours.ENTRY), "name": "fp8-kv"})
    with register(changed, ours.six_bit_cache, replace=True):
        assert kv_bits(("fp8-kv",)) == 6.25
    assert kv_bits(("fp8-kv",)) == shipped == 8


def vars_of(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Six bit"}, "the technique 'Six bit': its name must be of small letters"),
        ({"level": "modle"}, "'level' must be 'data', 'model' or 'system', got 'modle'"),
        ({"requires": ("KV cash",)}, "unknown requirement 'KV cash'; did you mean 'KV cache'?"),
        ({"parameters": ()}, "cannot take its constants and parameters: missing a required argument: 'group'"),
        ({"covers": ("EAGLE",)}, "the technique 'EAGLE' exists already; replace=True replaces it"),
    ],
)
def test_mistakes_are_one_sentence(change: dict[str, Any], message: str, module: LoadModule) -> None:
    ours = module(f"BITS = 6{OURS}")
    with pytest.raises(RooflineError) as caught:
        register(ours.Technique(**{**vars_of(ours.ENTRY), **change}), ours.six_bit_cache)
    assert message in str(caught.value)
    assert "six-bit-cache" not in techniques()


def prompt(techniques: tuple[str, ...]) -> int:
    scenario = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), prompt=1000, techniques=techniques)
    return int(scenario.prompt)


def test_entries_of_files_follow_their_files(specs: Path) -> None:
    with pytest.raises(UnknownNameError):
        prompt(("three-quarters",))
    path = put(specs / "techniques" / "ours.yaml", ENTRIES)
    assert prompt(("three-quarters",)) == 750
    assert prompt(("three-quarters:keep=0.5",)) == 500
    path.write_text(ENTRIES.replace("0.75", "0.25"), encoding="utf-8")
    assert prompt(("three-quarters",)) == 250
    path.unlink()
    with pytest.raises(UnknownNameError):
        prompt(("three-quarters",))


def test_an_entry_of_a_file_comes_before_the_shipped_one_of_its_name(specs: Path) -> None:
    shipped = prompt(("llmlingua",))
    path = put(specs / "techniques" / "ours.yaml", ENTRIES.replace("three-quarters", "llmlingua"))
    assert prompt(("llmlingua",)) == 750 != shipped
    path.unlink()
    assert prompt(("llmlingua",)) == shipped


def test_a_mistake_is_one_sentence_however_long_a_key_is(specs: Path) -> None:
    constants = f'slot: prompt\n    constants: {{"{"k" * 900}\\a": 1}}'
    put(specs / "techniques" / "ours.yaml", ENTRIES.replace("slot: prompt", constants))
    with pytest.raises(RooflineError) as caught:
        prompt(("three-quarters",))
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data.shorter_prompt", "os.system", "unknown function 'os.system'"),
        ("data.shorter_prompt", "base.import_module", "unknown function 'base.import_module'"),
        ("data.shorter_prompt", "data.shorter_promt", "did you mean 'data.shorter_prompt'?"),
        ("{keep:", "{kept:", "its function cannot take its constants and parameters: missing a required argument"),
        ("default: 0.75", "default: 7", "the default of 'keep' must be a number from its low to its high"),
        ("slot: prompt", "slot: prompt\n    constants: {kept: 1}", "cannot take its constants and parameters"),
        (
            "level: data",
            "level: dat",
            "'techniques.three-quarters.level' must be 'data', 'model' or 'system', got 'dat'",
        ),
    ],
)
def test_mistakes_in_files_name_the_file_and_the_key(old: str, new: str, message: str, specs: Path) -> None:
    path = put(specs / "techniques" / "ours.yaml", ENTRIES.replace(old, new))
    with pytest.raises(RooflineError) as caught:
        prompt(("three-quarters",))
    assert str(caught.value).startswith(f"{path}: 'techniques.three-quarters")
    assert message in str(caught.value)


def test_constants_that_a_function_cannot_compute_with_are_one_sentence(specs: Path) -> None:
    text = ENTRIES.replace("data.shorter_prompt", "data.soft_prefix").replace(
        "slot: prompt", "slot: prompt\n    constants: {tokens: many}"
    )
    path = put(specs / "techniques" / "ours.yaml", text.replace("keep", "fixed"))
    with pytest.raises(RooflineError) as caught:
        prompt(("three-quarters",))
    assert str(caught.value).startswith(f"{path}: 'techniques.three-quarters': its function cannot compute with")


def key() -> str:
    return make_study({"batch": "1,2"}, model="llama-3.1-8b", hw="h100-sxm").key


def test_results_of_studies_have_another_key(module: LoadModule, specs: Path) -> None:
    plain, ours = key(), module(f"BITS = 6{OURS}")
    with register(ours.ENTRY, ours.six_bit_cache):
        registered = key()
    again = module(f"BITS = 6{OURS}")
    with register(again.ENTRY, again.six_bit_cache):
        assert key() == registered != plain
    other = module(f"BITS = 5{OURS}")
    with register(other.ENTRY, other.six_bit_cache):
        assert key() not in (registered, plain)
    assert key() == plain
    path = put(specs / "techniques" / "ours.yaml", ENTRIES)
    first = key()
    path.write_text(ENTRIES.replace("0.75", "0.5"), encoding="utf-8")
    assert len({plain, first, key()}) == 3


def test_a_technique_speeds_up_decode(module: LoadModule) -> None:
    ours, plain = module(f"BITS = 6{OURS}"), decode_time()
    with register(ours.ENTRY, ours.six_bit_cache):
        assert decode_time(("six-bit-cache",)) < plain == decode_time()
