"""The steps of a maintainer's visit to a GPU: those of a user's, correctness of kernels, and the library's choices."""

from __future__ import annotations

from collections import Counter

from lab.gpu import correctness, library
from roofline.validate.gpu import plan
from roofline.validate.gpu.plan import ENDING, Found, Step
from roofline.validate.gpu.pool import Answer, each
from roofline.validate.gpu.shapes import FULL
from roofline.validate.gpu.summary import rows_in
from roofline.validate.gpu.visit import Visit
from roofline.validate.measure.device import Cuda, is_device_failure
from roofline.validate.tables.rowfile import RowFile

VERDICTS, KERNELS = "correctness.csv", "kernels.csv"
"""Files of a visit: correctness, and the kernels of the library."""

VERDICT_COLUMNS = ("op", "format", "kernel", "case", "status", "error", "allowed", "reason", "seconds")


def correct(visit: Visit) -> Found:
    """Every kernel against float64, in all formats and at odd sizes, in processes that may fail."""
    device, counts, wrong = visit.bench.device, Counter[str](), []
    (visit.folder / VERDICTS).unlink(missing_ok=True)  # those of an earlier visit say nothing of this one
    with RowFile(visit.folder / VERDICTS, VERDICT_COLUMNS) as file:

        def keep(answer: Answer) -> None:
            row = verdict_row(answer)
            file.append(row)
            counts[str(row["status"])] += 1
            if row["status"] in ("wrong", "failed"):
                wrong.append(f"{row['case']} with {row['kernel']}: {row['reason'] or 'error ' + str(row['error'])}")

        cases = correctness.points(visit.bench.sizes == FULL)
        if visit.bench.isolated:
            left = each(
                lambda point: correctness.verdict(point, device),
                cases,
                visit.bench.workers,
                keep,
                visit.left() - ENDING,
                is_device_failure,
            )
        else:
            left = 0
            for point in cases:
                keep(Answer(point, correctness.verdict(point, device), None, 0.0))
    failed = f"; first: {wrong[0]}" if wrong else ""
    rest = f", {left} left" if left else ""
    count = counts["wrong"] + counts["failed"]
    return f"{counts['correct']} correct, {count} not, {counts['refused']} refused{rest}{failed}", {"wrong": wrong[:40]}


def verdict_row(answer: Answer) -> dict[str, object]:
    """The row of an answer: `correct`, `wrong`, `refused`, or `failed` with an error."""
    case, backend = answer.task
    row: dict[str, object] = {"op": case.op, "format": case.format, "kernel": backend, "case": str(case)}
    row["seconds"] = f"{answer.seconds:.2f}"
    if answer.error is not None:
        return {**row, "status": "failed", "reason": answer.error}
    verdict: correctness.Verdict = answer.value
    if verdict.refused:
        return {**row, "status": "refused", "reason": verdict.refused}
    status = "correct" if verdict.correct else "wrong"
    return {**row, "status": status, "error": f"{verdict.error:.3g}", "allowed": f"{verdict.allowed:.3g}"}


def asked(visit: Visit) -> Found:
    """The kernels that the vendor's library chooses for GEMMs, in 16 bits and FP8."""
    device = visit.bench.find_device()
    if not isinstance(device, Cuda):
        return "this device has no vendor's library to ask", {}
    count = 0
    done = {tuple(row[name] for name in ("dtype", "m", "n", "k")) for row in rows_in(visit.folder / KERNELS)}
    with RowFile(visit.folder / KERNELS, library.COLUMNS) as file:
        origin = {"hardware": visit.machine.hardware.name, "software": device.software}
        for dtype in library.FORMATS:
            wanted = [shape for shape in library.asked(visit.bench.sizes) if (dtype, *map(str, shape)) not in done]
            for row in library.library_kernels(device.torch, dtype, wanted, lambda: visit.left() - 5 * ENDING):
                file.append({**row, **origin})
                count += 1
            device.release()
    before = f", {len(done)} already there" if done else ""
    return f"{count} GEMMs with the kernels that the library chose{before}", {}


_CORRECT = Step(
    *("correct", "every Triton kernel against float64, odd shapes, all formats", 35, 90, correct),
    rows=(VERDICTS, VERDICT_COLUMNS),
)
_LIBRARY = Step(
    *("library", "which kernel cuBLAS chooses for some 10,000 GEMMs", 22, 40, asked),
    rows=(KERNELS, library.COLUMNS),
)

STEPS: tuple[Step, ...] = (*plan.STEPS[:2], _CORRECT, plan.STEPS[2], _LIBRARY, *plan.STEPS[3:])
"""Correctness before anything is timed, and the library's kernels after its GEMMs."""
