"""Notes on a checkpoint on disk: what its files hold, what the engine makes of it, where it differs from the model."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.bound.memory import component_elements
from roofline.core.units import si
from roofline.specs.checkpoint import released_scheme, runs_as_stored
from roofline.specs.engine import Engine
from roofline.specs.model import Model
from roofline.specs.weight_files.stored import Share, Stored


def stored_notes(model: Model, engine: Engine) -> Iterator[str]:
    """The notes on the checkpoint that a model was read from; none for models of a spec."""
    stored = model.stored
    if stored is None:
        return
    yield contents(stored)
    if not runs_as_stored(model, engine):
        released = f"{model.quantization}, which runs as {released_scheme(model, engine)}" if model.quantization else ""
        yield f"{engine.label} does not keep the formats of the checkpoint: {released or 'it converts them to one'}"
    if stored.left_out.tensors:
        beside = "loaded all the same" if stored.loaded else "not counted"
        yield f"{_counted(stored.left_out)} of the checkpoint are read by no simulated operator, and {beside}"
    difference = mismatch(model)
    if difference:
        yield difference
    yield from (f"beside it is {adapter}" for adapter in stored.adapters)


def contents(stored: Stored) -> str:
    """What the files of a checkpoint hold, adding up to their size."""
    formats = ", ".join(f"{name} {si(share.bytes, 'B')}" for name, share in stored.formats.items())
    files = f"{stored.files} files" if stored.files > 1 else "the file"
    tensors = sum(share.tensors for share in stored.formats.values())
    return (
        f"checkpoint: {tensors} tensors ({formats}); {stored.bytes:,} bytes of tensors, {stored.header:,} of headers"
        f" and {stored.padding:,} of padding are the {stored.size:,} bytes of {files}"
    )


def mismatch(model: Model) -> str:
    """The largest difference between a checkpoint's tensors and the model that its config describes; "" for none."""
    assert model.stored is not None
    expected = dict(component_elements(model))
    worst: tuple[int, str] = (0, "")
    for components, share in model.stored.components.items():
        own = sum(expected.pop(name, 0) for name in components)
        if own != share.elements:
            text = f"{'/'.join(components)} has {share.elements:,} elements in the tensors and {own:,} in the config"
            worst = max(worst, (abs(own - share.elements), text))
    missing = {name: count for name, count in expected.items() if count}
    for name, count in missing.items():
        worst = max(worst, (count, f"{name} has {count:,} elements in the config and no tensor"))
    return f"the checkpoint and its config differ: {worst[1]}" if worst[0] else ""


def _counted(share: Share) -> str:
    return f"{share.tensors} tensor{'s' * (share.tensors != 1)} ({si(share.bytes, 'B')})"
