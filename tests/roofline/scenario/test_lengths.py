"""Distributions of lengths: closed forms, histograms, and bad input."""

import math

import pytest

from roofline.core.errors import RooflineError
from roofline.scenario.lengths import longer, parse_lengths


def test_lengths_have_their_closed_forms() -> None:
    assert parse_lengths(2000).mean == parse_lengths("2_000").biased == 2000
    assert parse_lengths("2k").mean == parse_lengths("fixed:2k").mean == 2000
    assert parse_lengths("uniform:1k:3K").mean == (1000 + 3072) / 2  # k is decimal, K binary
    uniform = parse_lengths("uniform:100:400")
    assert (uniform.mean, uniform.quantile(0.5)) == (250, 250)
    assert uniform.deviation == pytest.approx(300 / math.sqrt(12))
    exponential = parse_lengths("exponential:mean=300")
    assert exponential.biased == pytest.approx(600)  # the inspection paradox doubles it
    assert exponential.quantile(0.95) == pytest.approx(300 * math.log(20))
    for text in ("lognormal:mean=512,p95=1500", "lognormal:median=300,p95=1500", "lognormal:mean=512,median=300"):
        found = parse_lengths(text)
        sample = found.sample
        assert sample.mean() == pytest.approx(found.mean, rel=0.02)
        assert (sample**2).mean() == pytest.approx(found.second, rel=0.2)
    assert parse_lengths("lognormal:mean=512,p95=1500").quantile(0.95) == pytest.approx(1500)
    assert parse_lengths("lognormal:mean=512,p95=1500").mean == pytest.approx(512)
    assert parse_lengths("lognormal:mean=512,median=300").quantile(0.5) == pytest.approx(300)


def test_a_histogram_counts(tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("length,count\n100,3\n500,1\n")
    found = parse_lengths(str(file))
    assert found.mean == 200
    assert found.second == (3 * 100**2 + 500**2) / 4
    assert [found.quantile(share) for share in (0.5, 0.75, 0.76, 0.99)] == [100, 100, 500, 500]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lognormal:mean=512,p95=2048", "at most 3.87 times the mean"),
        ("lognormal:mean=512,p20=600", "'p20' is not mean, median or a percentile"),
        ("uniform:9", "uniform:LOW:HIGH"),
        ("fixed:many", "fixed:TOKENS"),
        ("fixed:1.5", "whole tokens"),
        ("normal:mean=3", "unknown distribution 'normal'"),
        ("many", "is a number of tokens"),
        ("nan", "must be 1 to"),
    ],
)
def test_bad_lengths_are_told_in_a_sentence(text, message) -> None:
    with pytest.raises(RooflineError, match=message.replace("(", r"\(")):
        parse_lengths(text)


@pytest.mark.parametrize(
    "text", [1e200, "1e308", "uniform:1:1e300", "lognormal:median=1,p51=1e15", "lognormal:mean=1e300,p95=1e301"]
)
def test_lengths_beyond_a_double_are_refused(text) -> None:
    with pytest.raises(RooflineError, match="--prompt"):
        parse_lengths(text, "--prompt")


def test_invalid_histograms_are_refused(tmp_path) -> None:
    for content, message in (("1,2\n3\n", "row 2 of"), ("1,0\n", "sum to 0"), ("", "sum to 0")):
        file = tmp_path / "bad.csv"
        file.write_text(content)
        with pytest.raises(RooflineError, match=message):
            parse_lengths(str(file))


def test_the_share_beyond_a_length_is_that_of_the_distribution(tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("length,count\n100,3\n500,1\n")
    for text, length, share in (
        ("uniform:100:300", 250, 0.25),
        ("lognormal:mean=512,p95=1500", 1500, 0.05),
        ("exponential:mean=300", 300 * math.log(100), 0.01),
        (str(file), 100, 0.25),
        (str(file), 99, 1),
        (str(file), 500, 0),
        ("200", 200, 0),
        ("200", 199.5, 1),
    ):
        assert parse_lengths(text).beyond(length) == pytest.approx(share, abs=2e-6)
    assert longer(parse_lengths("uniform:100:300"), parse_lengths("uniform:100:300"), 400) == pytest.approx(0.5)
    halved = parse_lengths("lognormal:mean=512,p95=1500").times(0.5)
    assert (halved.written, round(halved.quantile(0.95))) == ("lognormal:mean=256,p95=750", 750)
    assert (parse_lengths(str(file)).times(0.5).mean, parse_lengths(str(file)).times(0.5).quantile(0.5)) == (100, 50)
