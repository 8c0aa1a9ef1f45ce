"""Assumptions and sources of a metric, and commands that measure it on real hardware."""

from __future__ import annotations

from collections.abc import Iterable

from roofline.scenario.analysis import Analysis
from roofline.scenario.energy import device_pools
from roofline.scenario.notes import caches, fused
from roofline.timing.chains import engine_calibration
from roofline.whatif.explanation.metrics import METRICS


def assumptions(analysis: Analysis) -> Iterable[str]:
    """The assumptions of a scenario, and the sources of its numbers."""
    scenario, precision = analysis.scenario, analysis.precision
    kept = f" KV {precision.kv.name}," if caches(analysis) else ""
    yield (
        f"formats: weights {precision.weights.name}, activations {precision.activations.name},{kept}"
        f" elsewhere {precision.base.name}"
    )
    if joined := fused(analysis):
        yield f"fused in the graph: {', '.join(joined)}"
    named = list(dict.fromkeys(scenario.hardware.sources.values()))[:3] or ["its spec, which names no source"]
    yield f"peaks and bandwidth of {scenario.hardware.name} from: {'; '.join(named)}"
    if scenario.model.experts:
        skew = scenario.settings.expert_skew
        yield f"expert routing with skew {skew:g}" if skew else "uniform expert routing"
    if scenario.settings.speculation is not None:
        speculation = scenario.settings.speculation
        origin = f"those of {speculation.measured}" if speculation.measured else "given, not predicted"
        yield f"{speculation.accepted:.4g} tokens per iteration are {origin}"
    if scenario.techniques:
        yield f"techniques: {', '.join(scenario.techniques)}"
    if not analysis.times_are_expected:
        yield "llm-viewer convention, which has no expected times"
        return
    engine = scenario.profile
    yield f"engine {engine.heading}: {'; '.join(engine.sources) or 'no measurements'}"
    if engine.fusions:
        yield f"fused in the engine's kernels: {', '.join(engine.fusions)}"
    calibration = engine_calibration(scenario.hardware, engine)
    chain = ", then ".join(f"{link.name} ({link.basis})" for link in calibration.chain)
    yield f"kernel constants: {chain}"
    if (host := scenario.hardware.host) is not None:
        yield f"collectives over PCIe on the host {host.title or host.name}: {'; '.join(host.sources) or 'no source'}"
    for phase in (analysis.prefill, analysis.decode):
        if phase is not None:
            basis = phase.basis
            yield f"{phase.name}: mostly {basis.basis} ({basis.source}), {basis.outside:.0%} outside fitted ranges"


def sources_of(analysis: Analysis, name: str) -> Iterable[str]:
    """The sources of energy figures or of the price; none for other metrics."""
    section = {"energy": "energy.", "cost": "price."}.get(name)
    if section is None:
        return
    if name == "cost" and analysis.scenario.price is not None:
        yield f"given price: {analysis.scenario.price:g} USD/h per device"
        return
    for hardware in device_pools(analysis):
        for key, source in hardware.sources.items():
            if key.startswith(section):
                yield f"{key} of {hardware.name} from: {source}"
        if name == "energy" and hardware.energy is not None and not hardware.energy.compute:
            yield f"energy per FLOP on {hardware.name}: the rest of the TDP at the peak of the format"


def commands(analysis: Analysis, name: str) -> Iterable[tuple[str, str]]:
    """Pairs (tool, command) that measure the scenario; $MODEL is a checkpoint of the model."""
    scenario = analysis.scenario
    batch, prompt, generate = int(scenario.batch), int(scenario.prefix + scenario.prompt), int(scenario.generate)
    ranks = scenario.settings.parallel
    experts = ranks.expert > 1
    spread = f" --tensor-parallel-size {ranks.tensor}"
    spread += f" --pipeline-parallel-size {ranks.pipeline}" if ranks.pipeline > 1 else ""
    spread += f" --data-parallel-size {ranks.data}" if ranks.data > 1 else ""
    spread += " --enable-expert-parallel" if experts else ""
    group = f"--tp {ranks.tensor * ranks.data} --pp {ranks.pipeline}" + (f" --ep {ranks.expert}" if experts else "")
    cache = " --kv-cache-dtype fp8" if analysis.precision.kv.name == "fp8" else ""
    without = f"without {', '.join(scenario.techniques)}" if scenario.techniques else ""
    noted = f"  # {without}" if without else ""
    if scenario.model.task == "generate":
        yield (
            "vllm",
            f"vllm bench latency --model $MODEL --batch-size {batch} --input-len {prompt} --output-len {generate}"
            f"{spread}{cache}{noted}",
        )
        yield (
            "tensorrt-llm",
            f"trtllm-bench --model $MODEL throughput --backend pytorch {group}"
            f" --max_batch_size {batch} --dataset $DATASET  # of {batch} requests, {prompt} tokens in, {generate} out"
            + (f", {without}" if without else ""),
        )
        if ranks.data == 1 and ranks.pipeline == 1:
            yield (
                "sglang",
                f"python -m sglang.bench_one_batch --model-path $MODEL --batch-size {batch} --input-len {prompt}"
                f" --output-len {generate} --tp {ranks.tensor}"
                + (f" --ep-size {ranks.expert}" if experts else "")
                + noted,
            )
        several = f"llama-batched-bench -m $MODEL.gguf -c {batch * (prompt + generate)} -npp {prompt} -ntg {generate}"
        alone = f"llama-bench -m $MODEL.gguf -p {prompt} -n {generate}"
        if ranks.devices == 1:
            yield "llama.cpp", f"{alone if batch == 1 else f'{several} -npl {batch}'} -ngl 99{noted}"
    if name not in METRICS:
        yield "kernels", f"roofline validate score measured.csv --hw {scenario.hardware.name} --by op,format,regime"
    yield "published", "roofline validate check"
