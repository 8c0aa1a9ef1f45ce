"""The options of what runs, where, and how much of it."""

# Annotations are evaluated here, at once: their metadata is the table.
import os
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from roofline.core.lazy import later
from roofline.core.limits import MAX_BATCH, MAX_LENGTH
from roofline.core.options import Kind, Option
from roofline.scenario.options.groups import WORKLOAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roofline.scenario.lengths import Lengths
    from roofline.specs.hardware import Hardware
    from roofline.specs.model import Model

parse_lengths = later("roofline.scenario.lengths", "parse_lengths")

BATCHES = tuple(sorted({size for power in range(11) for size in (2**power, 3 * 2**power // 2)}))
"""The stops of the batch."""


def _grid(
    help: str,
    low: int,
    high: int,
    short: str,
    default: str = "",
    otherwise: str = "",
    unit: str = "tokens",
    **more: Any,
) -> Option:
    """A count of the workload, of a static batch unless it says otherwise."""
    more = {"static": True, "default": default, "otherwise": otherwise, **more}
    return Option(help, Kind.GRID, WORKLOAD, short=short, unit=unit, low=low, high=high, **more)


Count = int | list[int]


class Workload(TypedDict, total=False):
    """What runs, where, and how much of it."""

    model: Annotated[
        "str | os.PathLike[str] | Model | None",
        Option(
            "A model: its name, a Hugging Face repository, a spec file, config.json or checkpoint.",
            Kind.TEXT,
            WORKLOAD,
            short="Model",
            needed="a model such as llama-3.1-8b, qwen3-32b, gpt-oss-120b or deepseek-v3, or a config.json"
            " ('roofline specs list models' lists all)",
            check=later("roofline.specs.modelspec", "load_model"),
            known=later("roofline.specs.modelspec", "list_models"),
            often=True,
            example="qwen3-8b",
        ),
    ]
    hw: Annotated[
        "str | os.PathLike[str] | Hardware | None",
        Option(
            "Hardware: a name, also with a count as in 8xH200, or a spec file.",
            Kind.TEXT,
            WORKLOAD,
            short="Device",
            metavar="HW",
            needed="hardware such as h100-sxm, h200-sxm, b200-sxm, mi300x, rtx-4090 or m4-max"
            " ('roofline specs list hardware' lists all)",
            check=later("roofline.specs.hardware", "load_mixed"),
            flags=("--hardware",),
            known=later("roofline.specs.hardware", "list_hardware"),
            often=True,
            example="mi300x",
        ),
    ]
    batch: Annotated[
        "Count | NDArray[Any] | None",
        _grid(
            "Sequences in the batch.",
            1,
            MAX_BATCH,
            "Batch",
            "1",
            unit="sequences",
            often=True,
            stops=BATCHES,
            example="32",
        ),
    ]
    prompt: Annotated[
        "Count | str | NDArray[Any] | Lengths | None",
        _grid(
            "Prompt tokens per sequence, such as 512, 32k or 128K; under load also a distribution:"
            " uniform:128:1024, lognormal:mean=512,p95=1500, exponential:mean=300, or a CSV file of length,count.",
            1,
            MAX_LENGTH,
            "Prompt",
            otherwise="512",
            other=lambda written: parse_lengths(written, "prompt"),
            often=True,
            stops=tuple(2**power for power in range(7, 19)),
            example="4k",
            static=False,
        ),
    ]
    generate: Annotated[
        "Count | str | NDArray[Any] | Lengths | None",
        _grid(
            "Tokens to generate per sequence, written likewise.",
            1,
            MAX_LENGTH,
            "Generate",
            "128",
            other=lambda written: parse_lengths(written, "generate"),
            often=True,
            stops=(1, *(2**power for power in range(4, 15))),
            example="300",
            static=False,
        ),
    ]
    context: Annotated[
        "Count | str | NDArray[Any] | None",
        _grid(
            "Tokens in the KV cache at the decode step shown; a prompt that is not given fills them.",
            0,
            2 * MAX_LENGTH,
            "Context",
            otherwise="prefix + prompt",
            example="3000",
        ),
    ]
    prefix: Annotated[
        "Count | str | NDArray[Any] | None",
        _grid("Cached prefix tokens, before those of the prompt.", 0, MAX_LENGTH, "Cached prefix", "0", example="512"),
    ]
    images: Annotated[
        "Count | NDArray[Any] | None",
        _grid(
            "Images per sequence, for vision-language models.",
            0,
            MAX_BATCH,
            "Images",
            "0",
            unit="images",
            static=False,
            example="3",
        ),
    ]
    image_size: Annotated[
        str | None,
        Option(
            "Size of the images in pixels.",
            Kind.TEXT,
            WORKLOAD,
            short="Image size",
            metavar="WxH",
            otherwise="the model's",
            check=later("roofline.specs.images", "parse_image_size"),
            example="1024x1024",
        ),
    ]
    audio: Annotated[
        float | str | None,
        Option(
            "Audio per sequence, in windows of the model's encoder, such as 45s.",
            Kind.TIME,
            WORKLOAD,
            short="Audio",
            example="45s",
        ),
    ]
