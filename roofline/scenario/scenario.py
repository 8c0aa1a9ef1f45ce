"""A scenario: everything that a prediction depends on. A technique is a function from one scenario to another."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Unpack

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.limits import MAX_BATCH
from roofline.graph.convention import Convention
from roofline.graph.extents import Step
from roofline.scenario.catalogue import catalogue
from roofline.scenario.engine_options import ranks_together
from roofline.scenario.fields import WORKLOAD, checked, comparable, comparable_settings, image_of, is_any, shown
from roofline.scenario.lengths import Lengths, with_mean
from roofline.scenario.options import OPTIONS, Options, by_name
from roofline.scenario.question import OBJECTS, Question
from roofline.scenario.resolution import resolve
from roofline.scenario.settings import Settings
from roofline.specs.checkpoint import run_precision
from roofline.specs.engine import Engine, resolve_engine
from roofline.specs.hardware import Hardware
from roofline.specs.images import EncodedImage
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.servers import check_setting
from roofline.specs.states import check_linked


class Scenario:
    """The question: a model on hardware with a workload, formats, parallelism, an engine and its settings.

    Every option of `roofline.scenario.options` is a keyword, and model and hardware may come first:

    >>> from roofline import Scenario
    >>> Scenario("llama-3.1-8b", "h100-sxm", batch=8, quant="fp8", tp=2)
    Scenario(llama-3.1-8b on h100-sxm, batch 8, prompt 512, generate 128, weights fp8, KV bf16, 2 devices, engine vllm)

    Model, hardware, engine and host are names, paths or objects. `batch` (sequences), `prompt`, `generate`, `context`
    and `prefix` (tokens per sequence) are integers or NumPy integer arrays that broadcast. `prefix` tokens are cached
    before prefill. `context` is the number of cached tokens at the reported decode step, by default prefix + prompt,
    the first step of a generation. Formats default to those of the released checkpoint, as far as engine and hardware
    support them (`roofline.specs.checkpoint`); `precision` gives all at once. The `images` of each sequence pass
    through the model's vision encoder and join the prompt. The prompt of an encoder-decoder is its encoder's input.
    `settings`, a `Settings`, is the start that single options change. `techniques` are applied, each written NAME or
    NAME:key=value. `fusions` are names of `roofline.graph.fusion` in place of `flash` and `fuse`.

    Scenarios are immutable, comparable, hashable and picklable; `with_` gives a changed one. Raises RooflineError for
    values that no scenario has, or not together.
    """

    model: Model
    hardware: Hardware
    batch: Any
    prompt: Any
    generate: Any
    context: Any
    prefix: Any
    precision: Precision
    fusions: tuple[str, ...]
    convention: Convention
    images: Any
    settings: Settings
    techniques: tuple[str, ...]
    engine: Engine | str
    price: float | None
    carbon: float | None
    image_size: str | None
    host: str | None
    network: str | None
    drawn: tuple[Lengths | None, Lengths | None]
    _question: Question | None
    _plain: Scenario | None

    def __init__(
        self,
        model: str | os.PathLike[str] | Model | None = None,
        hardware: str | os.PathLike[str] | Hardware | None = None,
        /,
        **options: Unpack[Options],
    ) -> None:
        first = {name: value for name, value in (("model", model), ("hw", hardware)) if value is not None}
        for name in first:
            if name in {FIELD_OPTIONS.get(option, option) for option in options}:
                raise RooflineError(f"{name} is given twice")
        self._ask(Question().with_({**first, **options}))

    @classmethod
    def varied(cls, fixed: Mapping[str, Any], changes: Mapping[str, Any]) -> Scenario:
        """The scenario of `fixed` options, of which `changes` replace some, as those of `with_` do."""
        return cls.of(Question().with_(fixed).with_(changes))

    @classmethod
    def of(cls, question: Question, plain: Scenario | None = None) -> Scenario:
        """The scenario of a question, which may have the `plain` one before its techniques of another."""
        scenario = object.__new__(cls)
        scenario._ask(question, plain)
        return scenario

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a scenario does not change: scenario.with_({name}=...) gives a changed one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a scenario does not change, and keeps its {name}")

    def __repr__(self) -> str:
        return f"Scenario({self.described})"

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Scenario) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._fields, self._question, self._plain)

    def with_(self, **changes: Unpack[Options]) -> Scenario:
        """The scenario with other options, and its techniques applied again; None takes an option back.

        >>> from roofline import Scenario
        >>> scenario = Scenario("llama-3.1-8b", "h100-sxm", techniques=["awq"])
        >>> scenario.with_(batch=64, techniques=None) == Scenario("llama-3.1-8b", "h100-sxm", batch=64)
        True
        """
        question = self.question.with_(changes)
        return Scenario.of(question, self._plain if _same_plain(self.question, question) else None)

    def without(self, *names: str) -> Scenario:
        """The scenario with options at their defaults; itself where none of them is given."""
        changes = dict[str, Any].fromkeys(names)
        plain = self.asked and self.question.values.keys().isdisjoint(by_name(changes, OBJECTS))
        return self if plain else self.with_(**changes)

    def changed(self, **fields: Any) -> Scenario:
        """The scenario with fields changed, as techniques and variations do: no option is read again."""
        changed = {**self._fields, **fields}
        if len(changed) > len(FIELDS) or not (
            isinstance(changed["model"], Model) and isinstance(changed["hardware"], Hardware)
        ):
            raise RooflineError("changed() takes fields and objects; with_() takes options and names, as with_(tp=2)")
        return _restored(checked(changed), None)

    def at(self, **counts: Any) -> Scenario:
        """The scenario with other counts of its workload, before techniques; no limit of the engine checks them."""
        if not self.asked:
            return self.changed(**counts)
        plain = self.plain.changed(**counts)
        return catalogue().apply(plain, self.question.values["with"]) if self.techniques else plain

    @property
    def question(self) -> Question:
        """What was asked; of a scenario whose fields were changed, its fields."""
        if self._question is not None:
            return self._question
        if self.techniques:
            raise RooflineError("a scenario that was changed after its techniques cannot be asked again: start before")
        return Question().with_({FIELD_OPTIONS.get(name, name): value for name, value in self._fields.items()})

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name: `Scenario(**scenario.options) == scenario`.

        Raises RooflineError for a scenario of objects that no text stands for.
        """
        return self.question.options

    def given_options(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The options as they were given, but for some; objects of the library where no text stands for them."""
        return self.question.with_(dict.fromkeys(without)).named

    @property
    def asked(self) -> bool:
        """Whether the scenario's options are known: not of one whose fields a technique or a variation changed."""
        return self._question is not None

    @property
    def model_name(self) -> str:
        """The name or path of the model, as given; the spec's where a technique changed the scenario."""
        return self.question.written.get("model", self.model.name) if self.asked else self.model.name

    @property
    def hardware_name(self) -> str:
        """The name or path of the hardware, as given."""
        return self.question.written.get("hw", self.hardware.name)

    @property
    def engine_name(self) -> str:
        """The name (with a version) or path of the engine."""
        return self.engine if isinstance(self.engine, str) else self.engine.label

    @property
    def plain(self) -> Scenario:
        """The scenario before its techniques."""
        return self._plain or self

    @property
    def counted(self) -> bool:
        """Whether the hardware was named with its count, as in 8xH200, and no degree says how it is laid out."""
        return self.question.counted > 1 and not self.devices_for_replicas

    @property
    def devices_for_replicas(self) -> int:
        """The devices of hardware named with its count, as in 8xH200, where the degrees are those of one replica; or 0.

        Replicas fill these devices.
        """
        asked = self._question
        return asked.counted if asked is not None and asked.layout_options == {"dp"} else 0

    def laid_out_for(self, sequences: float) -> Scenario:
        """The same with the layout that devices named with their count have for so many sequences in flight."""
        if not self.asked or not self.counted or sequences == self.question.in_flight:
            return self
        return Scenario.of(replace(self.question, in_flight=sequences).with_({}))

    def given(self, name: str) -> Any:
        """The value of an option as it was given; None for one that was not."""
        return self.question.values.get(name)

    @property
    def library_format(self) -> str | None:
        """The scheme in which Ollama's library has the model, where nothing says another format."""
        return None if self._question is None else self._question.library_format

    @property
    def max_batch(self) -> int:
        """The most sequences in the batch, of all data-parallel ranks."""
        settings = self.plain.settings
        return min(MAX_BATCH, (settings.sequences or MAX_BATCH) * settings.parallel.data)

    @property
    def lengths(self) -> tuple[Lengths, Lengths]:
        """The lengths of prompts and of outputs under load, in tokens."""
        prompt, generate = self.drawn
        return with_mean("prompt", self.prompt, prompt), with_mean("generate", self.generate, generate)

    def _ask(self, question: Question, plain: Scenario | None = None) -> None:
        """Take the fields that a question resolves to, with its techniques applied to the `plain` scenario."""
        techniques = question.values.get("with", ())
        if plain is None:
            plain = _restored(checked(resolve(question)), question.with_({"with": None}) if techniques else question)
            if plain.hardware is question.values["hw"]:
                vars(plain)["profile"] = question.profile
            plain._check_limits()
        applied = catalogue().apply(plain, techniques) if techniques else plain
        vars(self).update({**applied._fields, "_question": question, "_plain": plain if techniques else None})
        vars(self)["profile"] = applied.profile

    @property
    def _fields(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in FIELDS}

    @cached_property
    def _key(self) -> tuple[object, ...]:
        """All that a prediction depends on, in a form that compares."""
        counts = (comparable(getattr(self, name)) for name in (*WORKLOAD, "context"))
        lengths = (None if drawn is None else drawn.written for drawn in self.drawn)
        settings = comparable_settings(self.settings)
        return (
            *(self.model, self.hardware, self.precision, self.fusions, self.convention, self.techniques, self.profile),
            *(self.price, self.carbon, self.image_size, self.host, *counts, *lengths, settings),
        )

    @cached_property
    def _hash(self) -> int:
        counts = (comparable(getattr(self, name)) for name in (*WORKLOAD, "context"))
        return hash((self.model.name, self.hardware.name, self.techniques, self.price, self.settings.parallel, *counts))

    def _check_limits(self) -> None:
        """Raise RooflineError for what vLLM refuses, or runs in turns, and for links that slices have not."""
        settings = self.settings
        check_linked(self.hardware, settings.parallel.tensor, settings.parallel.pipeline)
        if self.given("ctx_size") is not None and not self.profile.split_layers:
            raise RooflineError(f"ctx_size is of llama.cpp's slots: on {self.profile.name} say max_model_len")
        for name in settings.prompt_steps:
            check_setting(self.profile.name, self.profile.version, name)
        if settings.sequences is not None and (batch := int(np.max(self.batch))) > self.max_batch:
            raise RooflineError(f"a batch of {batch} is more than max_num_seqs allows at once, {self.max_batch}")
        if any(OPTIONS[name].differs(self.given(name)) for name in ("prompt", "generate", "prefix", "images")):
            self.check_lengths()  # a load or a trace may have others than the default ones

    def check_lengths(self) -> None:
        """Raise RooflineError for sequences that are longer than the engine is set to run."""
        longest = self.plain.settings.longest
        if longest is not None and (tokens := int(np.max(self.plain.first_cached + self.plain.generate))) > longest:
            limit = self.question.longest(longest) if self.asked else f"max_model_len {longest}"
            raise RooflineError(f"a sequence of {tokens} tokens is longer than {limit}")

    @property
    def described(self) -> str:
        """The scenario in a line: model, hardware, workload, formats, devices, techniques and engine."""
        devices = self.settings.parallel.devices
        parts = [
            *(f"{name} {shown(getattr(self, name))}" for name in ("batch", "prompt", "generate")),
            *(f"weights {self.precision.weights.name}", f"KV {self.precision.kv.name}"),
            *([f"{devices} devices"] if devices > 1 else []),
            *(f"with {name}" for name in self.techniques),
            f"engine {self.profile.name}",
        ]
        return f"{self.model.name} on {self.hardware.name}, {', '.join(parts)}"

    @cached_property
    def profile(self) -> Engine:
        """The engine's profile."""
        found = resolve_engine(self.hardware, self.engine, self.model)
        speculation = self.settings.speculation
        return found if speculation is None else found.with_drafts(speculation.accepted)

    @property
    def draft_limit(self) -> int:
        """The most requests of all ranks that the engine runs at once with drafts by default; 0: no such limit."""
        settings = self.settings
        return 0 if settings.speculation is None or settings.sequences else self.profile.scheduler.drafted

    def with_room_for(self, concurrency: int | None) -> Scenario:
        """The scenario with `max_num_seqs` for so many requests, where the engine's limit with drafts is lower.

        None: as many requests as the engine runs without drafts.
        """
        if not self.draft_limit or (concurrency is not None and concurrency <= self.draft_limit):
            return self
        parallel = self.settings.parallel
        each = None if concurrency is None else -(-concurrency // parallel.data)
        ranks = ranks_together(self.profile.name, "max_num_seqs", parallel)
        return self.with_(max_num_seqs=(each or self.profile.scheduler.sequences) * ranks)

    @cached_property
    def technique_cache(self) -> dict[str, Scenario]:
        """The scenarios that techniques made of this one, by the technique as written."""
        return {}

    @cached_property
    def run_precision(self) -> Precision:
        """The formats that the engine computes in; those of the scenario in LLM-Viewer's convention."""
        if self.convention is not Convention.PHYSICAL:
            return self.precision
        return run_precision(self.precision, self.model, self.hardware, self.profile)

    @property
    def _encoder(self) -> bool:
        return self.model.tower_kind == "encoder"

    @property
    def prompt_tokens(self) -> Any:
        """Tokens of the decoder's prefill: prompt and image tokens, or the start token of an encoder-decoder."""
        if self._encoder:
            return 1
        return self.prompt + self.images * self.image_tokens if is_any(self.images) else self.prompt

    @cached_property
    def _image(self) -> EncodedImage:
        return image_of(self.model, self.image_size)

    @property
    def image_tokens(self) -> int:
        """Prompt tokens of one image."""
        tiles, positions = self._image
        return tiles * self.model.merged(positions)

    @property
    def first_cached(self) -> Any:
        """Cached tokens at the first decode step."""
        return self.prefix + self.prompt_tokens

    @property
    def tower_step(self) -> Step | None:
        """The pass of the model's encoder before prefill, if any."""
        if self._encoder:
            return Step(self.batch, self.prompt, 0)
        if self.model.tower_tokens is None or not is_any(self.images):
            return None
        tiles, positions = self._image
        return Step(self.batch * self.images * tiles, positions, 0)

    @property
    def prefill_step(self) -> Step:
        """The forward pass over the prompt."""
        source = self.prompt if self._encoder else 0
        return Step(self.batch, self.prompt_tokens, self.prefix, source, source)

    @property
    def decode_step(self) -> Step:
        """The reported decode step, with `decode_context` cached tokens."""
        return self.step_at(self.decode_context)

    @property
    def decode_context(self) -> Any:
        """Cached tokens at the reported decode step: `context`, or those of the first step of a generation."""
        return self.first_cached if self.context is None else self.context

    @property
    def last_step(self) -> Step:
        """The last decode step, with the largest KV cache."""
        if self.convention.context_includes_new_token or self.model.task == "encode":
            return self.decode_step
        context = np.maximum(self.first_cached + self.generate - 2, self.decode_context)
        return self.step_at(context if self.shape else int(context))

    def step_at(self, context: Any) -> Step:
        """The decode step at another context."""
        cached = context - 1 if self.convention.context_includes_new_token else context
        return Step(self.batch, 1, cached, self.prompt if self._encoder else 0)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the grid of workloads; () for a single one."""
        values = (self.batch, self.prompt, self.generate, self.decode_context, self.prefix, self.images)
        return () if all(type(value) is int for value in values) else np.broadcast_shapes(*map(np.shape, values))


FIELDS = tuple(name for name in Scenario.__annotations__ if not name.startswith("_"))

FIELD_OPTIONS: Mapping[str, str] = {"hardware": "hw", "techniques": "with"}
"""Options by the field that they set, where the names differ."""


def _same_plain(before: Question, after: Question) -> bool:
    """Whether two questions differ in techniques alone, and these leave the scenario before them as it is."""
    rest = [{name: value for name, value in asked.values.items() if name != "with"} for asked in (before, after)]
    if rest[0].keys() != rest[1].keys() or any(rest[0][name] is not rest[1][name] for name in rest[0]):
        return False
    return before.as_released == after.as_released


def _restored(fields: Mapping[str, Any], question: Question | None, plain: Scenario | None = None) -> Scenario:
    scenario = object.__new__(Scenario)
    vars(scenario).update({**fields, "_question": question, "_plain": plain})
    return scenario
