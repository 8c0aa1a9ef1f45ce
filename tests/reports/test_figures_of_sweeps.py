"""Figures of sweeps equal the sweep; errors for figures that cannot be drawn."""

from __future__ import annotations

import csv
import io
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.paths import ROOT

mpl = pytest.importorskip("matplotlib", reason="figures need matplotlib")

from matplotlib.collections import QuadMesh  # noqa: E402
from matplotlib.text import Annotation, Text  # noqa: E402

from roofline import RooflineError, load_hardware  # noqa: E402
from roofline.reports.figures.drawing import Picture, draw  # noqa: E402
from roofline.reports.figures.request import FigureSpec, figure_spec_for, read_figure_spec  # noqa: E402
from roofline.reports.figures.style import save  # noqa: E402
from roofline.whatif.study import make_study  # noqa: E402
from roofline.whatif.sweeps import sweep  # noqa: E402
from tests.conftest import Run  # noqa: E402

MODEL, L40S = "llama-3.1-8b", {"hw": "l40s"}
GRID = ["batch=1,16,256", "prompt=512,8192"]


def drawn(kind: str, over: list[str], model: str | None = MODEL, options: object = None, **spec: object) -> Picture:
    settings = {name: spec.pop(name) for name in ("at", "where", "pareto") if name in spec}
    return draw(FigureSpec(kind, **spec), model, over, L40S if options is None else options, settings)  # type: ignore[arg-type]


def rows(picture: Picture) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(picture.data)))


def legend(picture: Picture) -> list[str]:
    boxes = [*picture.figure.legends, *(box for panel in picture.figure.axes if (box := panel.get_legend()))]
    return [text.get_text() for box in boxes for text in box.get_texts()]


def test_a_heat_map_has_the_metric_of_every_cell_that_fits() -> None:
    picture = drawn("heatmap", GRID, metric=("ttft",))
    panel, bar = picture.figure.axes
    mesh = next(child for child in panel.get_children() if isinstance(child, QuadMesh))
    cells = np.ma.filled(mesh.get_array(), np.nan)
    found = sweep(make_study({"batch": "1,16,256", "prompt": "512,8192"}, ["ttft", "fits"], model=MODEL, **L40S))
    fits = found.columns["fits"].reshape(3, 2).T
    assert cells[fits] == pytest.approx(found.columns["ttft"].reshape(3, 2).T[fits])
    assert np.isnan(cells[~fits]).all()
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "16", "256"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["512", "8192"]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("batch", "prompt")
    assert bar.get_ylabel() == "TTFT, lower is better"
    assert len(panel.texts) == 6
    assert legend(picture) == ["does not fit in memory", "compute-bound"]


def test_axes_of_a_heat_map_by_name_with_categories_downwards() -> None:
    (panel, _) = drawn("heatmap", GRID, x="prompt").figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("prompt", "batch")
    (panel, _) = drawn("heatmap", ["quant=W16,W4", "batch=1,2"]).figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("batch", "quant")
    assert panel.yaxis_inverted()


def test_the_legend_has_the_bounds_that_there_are() -> None:
    assert legend(drawn("heatmap", ["batch=1,2", "prompt=16,8192"], metric=("ttft",))) == [
        *("compute-bound", "memory-bound")
    ]
    assert not legend(drawn("heatmap", ["batch=1,2", "prompt=16,32"], metric=("tpot",)))
    linked = drawn("heatmap", ["tp=4,8", "batch=1,2"], model="llama-3.1-70b", metric=("ttft",))
    assert legend(linked) == ["link-bound"]


def test_invalid_points_are_empty_cells() -> None:
    picture = drawn("heatmap", ["tp=1,3", "batch=3,6"], model="llama-3.1-8b")
    assert "cannot run, or excluded" in legend(picture)


def test_a_heat_map_where_nothing_fits() -> None:
    picture = drawn("heatmap", ["batch=1,2", "prompt=128,256"], model="llama-3.1-405b")
    assert legend(picture) == ["does not fit in memory"]


def test_many_cells_have_no_text_and_few_ticks() -> None:
    (panel, _) = drawn("heatmap", ["batch=1:256:log40", "prompt=16:8192:log60"]).figure.axes
    assert not panel.texts
    assert len(panel.get_xticks()) <= 16


def test_a_pareto_front_is_that_of_the_rows_that_fit() -> None:
    axes = {"quant": "W16,W8A8,W4", "batch": "1:256:log12"}
    picture = drawn("pareto", [f"{name}={values}" for name, values in axes.items()], pareto="ttft,tokens_per_s_per_gpu")
    best = sweep(make_study(axes, where="fits", pareto="ttft,tokens_per_s_per_gpu", model=MODEL, **L40S))
    (panel,) = picture.figure.axes
    (line,) = panel.get_lines()
    expected = sorted(zip(best.columns["ttft"], best.columns["tokens_per_s_per_gpu"], strict=True))
    assert np.array(line.get_xydata()) == pytest.approx(np.array(expected))
    assert f"Pareto front: {len(expected)} points" in legend(picture)
    assert "better" in [text.get_text() for text in panel.texts]


@pytest.mark.slow
def test_numbers_of_a_front_do_not_overlap() -> None:
    figure = drawn("pareto", ["quant=W16,W8A8,W4", "batch=1:64"], pareto="ttft,tokens_per_s_per_gpu").figure
    figure.canvas.draw()
    (panel,) = figure.axes
    notes = [text for text in panel.texts if isinstance(text, Annotation) and text.get_text().isdigit()]
    boxes = [Text.get_window_extent(note, figure.canvas.get_renderer()) for note in notes]  # type: ignore[attr-defined]
    assert len(notes) == 12
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_curves_are_a_line_for_each_category_with_bands_and_hollow_marks() -> None:
    picture = drawn("curves", ["quant=W16,W4", "batch=1:256:log9"], metric=("tpot",), options={**L40S, "prompt": 8192})
    (panel,) = picture.figure.axes
    lines = {str(line.get_label()): line for line in panel.get_lines() if not str(line.get_label()).startswith("_")}
    assert list(lines) == ["W16", "W4"]
    values = [float(row["tpot"]) for row in rows(picture) if row["quant"] == "W4"]
    assert lines["W4"].get_ydata() == pytest.approx(values)
    assert len(panel.collections) == 2
    assert legend(picture) == ["W16", "W4", "does not fit in memory"]
    assert {"tpot.low", "tpot.high"} <= rows(picture)[0].keys()


def test_bars_have_the_metric_its_interval_and_hatching() -> None:
    picture = drawn("bars", ["hw=h100-sxm,l4"], options={"batch": 32}, metric=("ttft", "tokens_per_s"))
    first, second = picture.figure.axes
    assert [patch.get_width() for patch in first.patches] == pytest.approx([float(r["ttft"]) for r in rows(picture)])
    assert [patch.get_width() for patch in second.patches] == pytest.approx(
        [float(r["tokens_per_s"]) for r in rows(picture)]
    )
    hatched = [patch.get_hatch() is not None for patch in first.patches]
    assert hatched == [row["fits"] == "False" or row["fits"] == "false" for row in rows(picture)]


def test_more_bars_than_colours() -> None:
    picture = drawn("bars", ["batch=1:9"])
    assert len(picture.figure.axes[0].patches) == 9
    assert not legend(picture)


def test_bars_of_two_axes_stand_side_by_side() -> None:
    picture = drawn("bars", ["hw=l4,l40s", "quant=W16,W4"], options={}, metric=("memory",))
    (panel,) = picture.figure.axes
    middles = [patch.get_y() + patch.get_height() / 2 for patch in panel.patches]
    assert middles == pytest.approx([-0.2, 0.2, 0.8, 1.2])
    assert legend(picture) == ["W16", "W4"]


def test_a_footprint_adds_up_to_the_memory_of_the_analysis() -> None:
    picture = drawn("footprint", ["quant=W16,W4", "batch=1,4"])
    table = rows(picture)
    static = {**L40S, "memory_reading": "static"}
    found = sweep(make_study({"quant": "W16,W4", "batch": "1,4"}, ["memory"], model=MODEL, **static)).columns["memory"]
    totals = {
        (row["quant"], row["group"]): sum(float(row[name]) for name in ("weights", "kv_cache", "activations"))
        for row in table
        if row["phase"] == "prefill"
    }
    assert list(totals.values()) == pytest.approx(found)
    (panel,) = picture.figure.axes
    heights = [patch.get_height() for patch in panel.patches]
    assert sum(heights[:3]) == pytest.approx(1)


def test_roofs_meet_the_slope_at_their_ridges() -> None:
    picture = draw(FigureSpec("roofs", formats=("fp16", "int8")), None, options={"hw": "a6000"})
    hardware = load_hardware("a6000")
    assert [float(row["ridge"]) for row in rows(picture)] == [
        hardware.tensor[name] / hardware.memory_bandwidth for name in ("int8", "fp16")
    ]
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    assert "int8: 309.7 TOP/s" in texts
    assert "ridge 201.6" in texts


@pytest.mark.parametrize(
    ("kind", "over", "spec", "message"),
    [
        ("heatmap", ["batch=1,2"], {}, "two axes, and the study varies 1"),
        ("heatmap", GRID, {"metric": ("decode_bound",)}, "decode_bound is text, and only numbers"),
        ("heatmap", GRID, {"metric": ("ttff",)}, "did you mean 'ttft'"),
        ("heatmap", GRID, {"x": "tp"}, "unknown axis of this study 'tp'; known: batch, prompt"),
        ("heatmap", GRID, {"where": "ttft < 1us"}, "none of the 6 points meets"),
        ("heatmap", GRID, {"pareto": "ttft,tpot"}, "has no Pareto front"),
        ("pareto", GRID, {"pareto": "ttft,tpot,memory"}, "front of two metrics, not of 3"),
        ("pareto", GRID, {"pareto": "ttft,decode_bound"}, "decode_bound has no better direction"),
        ("curves", GRID, {"x": "quant"}, "unknown axis of this study"),
        ("curves", GRID, {"metric": ("ttft", "tpot", "total", "step")}, "1 to 3 metrics"),
        ("bars", ["batch=1,2", "tp=1,2", "prompt=1,2"], {}, "bars show one axis"),
        ("footprint", ["batch=1:100"], {}, "12 groups of 6 settings"),
        ("roofs", [], {"where": "fits"}, "takes no --where"),
        ("roofs", [], {"metric": ("ttft",)}, "the figure roofs takes no metric"),
        ("memory", [], {"formats": ("fp16",)}, "the figure memory takes no formats"),
        ("roofs", [], {"formats": ("fp8e9",)}, "no peak for fp8e9"),
    ],
)
def test_errors_of_figures(kind: str, over: list[str], spec: dict[str, object], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        drawn(kind, over, None if kind == "roofs" else MODEL, **spec)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roofline", "batch", "prompt", "memory", "roofs", "heatmap", "bars"])
def test_custom_titles(kind: str) -> None:
    over = {"heatmap": GRID, "bars": ["batch=1,2"]}.get(kind, [])
    picture = drawn(kind, over, None if kind == "roofs" else MODEL, title="My $title " + "long " * 60)
    text = picture.figure.get_suptitle()
    assert text.startswith(r"My \$title")
    assert max(map(len, text.splitlines())) < 160


def test_an_encoder_has_no_time_per_token() -> None:
    with pytest.raises(RooflineError, match="tpot has no value at any point"):
        drawn("heatmap", ["batch=1,2", "prompt=128,256"], model="bert-base")


def test_no_front_of_what_does_not_fit() -> None:
    with pytest.raises(RooflineError, match="nothing in the study fits"):
        drawn("pareto", GRID, model="llama-3.1-405b")


@pytest.mark.slow
def test_a_study_file_with_a_figure_can_be_plotted_and_swept(run: Run, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "model: llama-3.1-8b\nhw: l40s\nover: {batch: '1,8', quant: 'W16,W4'}\n"
        "figure: {kind: curves, metric: tpot, title: 'A $5 <b>title', caption: Some words.}\n"
    )
    output = tmp_path / "out.svg"
    assert run("plot", study, "--output", output) == (0, f"wrote {output}\n", "")
    text = output.read_text(encoding="utf-8")
    assert "A $5 &lt;b&gt;title" in text
    assert "<b>" not in text
    first = output.read_bytes()
    assert run("plot", study, "--output", output)[0] == 0
    assert output.read_bytes() == first
    assert run("plot", "heatmap", study, "--metric", "memory", "--output", output)[0] == 0
    assert run("sweep", study, "--format", "csv")[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: llama-3.1-8b\n", "has no section 'figure'; name a figure"),
        ("figure: {metric: tpot}\n", "has no kind"),
        ("figure: {kind: curves, metrics: tpot}\n", "did you mean 'metric'"),
        ("figure: {kind: curves, title: [a]}\n", "'figure.title' must be text"),
        ("figure: {kind: heatmap}\nover: {batch: '1,2', tp: '1,2'}\nmodle: x\n", "unknown key 'modle'"),
    ],
)
def test_study_files_that_cannot_be_drawn(run: Run, tmp_path: Path, text: str, message: str) -> None:
    study, output = tmp_path / "study.yaml", tmp_path / "out.svg"
    study.write_text(text)
    status, out, error = run("plot", study, "--output", output)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heatmpa", MODEL], "did you mean 'heatmap'"),
        (["heatmap", MODEL, "--hw", "l40s", "--over", "batch"], "cannot read the axis 'batch'"),
        (["roofs"], "(--hw)"),
        (["measured", "missing.csv"], "missing.csv"),
        (["heatmap", MODEL, "--hw", "l40s", "--over", "hw=a100"], "hw is an axis and cannot be fixed as well"),
        (["measured", "missing.json"], "cannot be read"),
    ],
)
def test_invalid_commands(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    status, out, error = run("plot", *arguments, "--output", tmp_path / "out.svg")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_published_figures_are_drawn_from_the_document_of_the_check(run: Run, tmp_path: Path) -> None:
    document, output = tmp_path / "check.json", tmp_path / "out.png"
    run("validate", "check", "--format", "json", "--output", document)
    assert run("plot", "measured", document, "--output", output)[0] == 0
    document.write_text('{"anchors": [{"id": 1}]}')
    status, _, error = run("plot", "measured", document, "--output", tmp_path / "other.png")
    assert status == 2
    assert "is not a document of validate check" in error
    assert not (tmp_path / "other.png").exists()


@pytest.mark.parametrize("key", ["id", "group", "unit", "published", "inside"])
def test_a_document_without_a_key_is_not_drawn(key: str, tmp_path: Path, run: Run) -> None:
    row: dict[str, object] = {"id": "a", "group": "g", "unit": "s", "published": 1.0, "inside": True}
    row |= dict.fromkeys(("low", "mid", "high"), 1.0)
    row.pop(key)
    (tmp_path / "check.json").write_text(json.dumps({"anchors": [row]}))
    status, _, err = run("plot", "measured", tmp_path / "check.json", "-o", tmp_path / "a.svg")
    assert (status, "is not a document of validate check" in err) == (2, True)


def test_measured_kernels_and_models_are_drawn_from_their_files(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels.csv"
    kernels.write_text(
        "hardware,op,dtype,m,n,k,latency_us\nh100-sxm,gemm,bf16,64,4096,4096,15\nh100-sxm,gemm,bf16,8192,4096,4096,420\n"
    )
    picture = draw(FigureSpec("measured"), str(kernels))
    (panel,) = picture.figure.axes
    assert np.asarray(panel.collections[-1].get_offsets())[:, 0] == pytest.approx(np.array([15e-6, 420e-6]))
    assert "gemm, bf16: 2, median error" in legend(picture)[0]
    models = tmp_path / "models.csv"
    models.write_text(
        "model,hardware,gpus,engine,weights,kv,batch,input_len,output_len,metric,value,unit,source\n"
        "llama-2-7b,a100-sxm-80gb,1,gpt-fast,bf16,bf16,1,5,200,decode_throughput,104.9,tokens/s,somewhere\n"
    )
    assert len(rows(draw(FigureSpec("measured"), str(models)))) == 1


@pytest.mark.slow
def test_files_are_reproducible(tmp_path: Path) -> None:
    for kind in ("heatmap", "pareto", "curves", "bars", "footprint"):
        over = GRID if kind != "bars" else ["batch=1,2"]
        for name in ("one.svg", "two.svg"):
            save(drawn(kind, over).figure, tmp_path / name)
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
def test_hostile_names_are_text(tmp_path: Path) -> None:
    spec = ROOT / "hwspecs" / "l40s.yaml"
    hostile = tmp_path / "$x_{1}$ <script>&.yaml"
    hostile.write_text(spec.read_text(encoding="utf-8"), encoding="utf-8")
    for kind in ("heatmap", "pareto", "bars"):
        picture = drawn(kind, [f"hw=l40s,{hostile}", "batch=1,2"], options={"prompt": 100})
        save(picture.figure, tmp_path / "out.svg")
        text = (tmp_path / "out.svg").read_text(encoding="utf-8")
        assert "<script>" not in text
        assert "$x_{1}$ &lt;script&gt;&amp;.yaml" in text


def test_figure_specs_are_read_without_matplotlib() -> None:
    spec, source = figure_spec_for("heatmap", MODEL)
    assert (spec.kind, source) == ("heatmap", MODEL)
    assert read_figure_spec(ROOT / "hwspecs" / "a6000.yaml")[0] is None


def test_a_frontier_has_a_line_for_each_value_of_the_first_axis() -> None:
    picture = drawn("frontier", ["tp=1,2", "batch=1,16"], options={"hw": "l40s", "price": 2.0}, metric=("cost",))
    (panel,) = picture.figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("tokens/s per user", "USD per million output tokens")
    assert legend(picture)[:2] == ["tp 1", "tp 2"]
    assert {(row["tp"], row["concurrency"]) for row in rows(picture)} == {
        (tp, users) for tp in "12" for users in ("1.0", "16.0")
    }


@pytest.mark.slow
def test_a_frontier_without_axes_varies_the_tensor_parallel_degree() -> None:
    found = {(row["tp"], row["concurrency"]) for row in rows(drawn("frontier", []))}
    assert {tp for tp, _ in found} == set("1248")
    assert len({users for _, users in found}) > 5


def test_a_frontier_takes_no_other_metric_and_costs_need_a_price() -> None:
    with pytest.raises(RooflineError, match="takes no metric 'ttft'"):
        drawn("frontier", ["tp=1,2"], metric=("ttft",))
    with pytest.raises(RooflineError, match="takes no --where"):
        drawn("frontier", ["tp=1,2"], where="fits")
