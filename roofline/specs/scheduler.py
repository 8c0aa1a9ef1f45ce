"""The scheduler of an engine: how it fills its steps, and what a request takes outside them.

A step has the decode tokens of running sequences and tokens of prompts, up to a budget of `tokens`. A profile states
its policy under `scheduler`. The budget is by default that of the engine's memory (`Reserve.tokens`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta
from msgspec.structs import replace

from roofline.core.checked import Checked, Fraction
from roofline.specs.library import as_mapping
from roofline.specs.records import record, seconds
from roofline.specs.reserve import Count, Natural

MIXED: Final = "mixed"
PREFILL_FIRST: Final = "prefill first"
"""Chunks of prompts and decode tokens share a step (vLLM, TensorRT-LLM), or prompts have steps of their own, first."""

ORDERS = (MIXED, PREFILL_FIRST)

Time = Annotated[float, Meta(ge=0, le=600)]
Distance = Annotated[float, Meta(ge=0, le=100)]


class Scheduler(Checked, frozen=True):
    """The policy of a scheduler, and the times of its host in seconds.

    What a step has:

    * `order`: one of ORDERS.
    * `tokens`: the most tokens of a step (None: those of the engine's memory settings).
    * `sequences`: the most running sequences of a replica of attention (0: no limit); `drafted`: of all together where
      tokens are drafted and nothing says how many may run (0: no other limit).
    * `whole`: prompts are not cut into chunks; `piece`: the most tokens of one prompt in a step (vLLM's
      long-prefill-token-threshold; 0: the budget).
    * `reserved`: the part of a request's output that has room in the KV cache before the request is admitted; with less
      than 1, sequences are preempted where it runs out.
    * `masked`: experts get no rows of places that a CUDA graph pads, as of data-parallel ranks with fewer sequences
      than others; else each rank counts as the fullest.
    * `captured`: tokens of a step with prompts up to which CUDA graphs of the pieces between attention are replayed.

    When prompts are taken:

    * `lag`: steps that are already scheduled when a request arrives.
    * `poll`: decode steps from one look for new requests to the next (SGLang's --scheduler-recv-interval).
    * `gather`: steps that prompts wait for others while sequences decode: with data-parallel attention until there is
      one for each rank, or so many steps have passed since the last were (timeout_iters of TensorRT-LLM's
      attention_dp_config), else until those that fit fill a step (batch_wait_timeout_iters).
    * `pause`: steps without prompts after one with them, while sequences decode (prefill-decode-interval of SGLang,
      pull request 35017; of vLLM, 44558, one less than its prefill-schedule-interval, unless requests wait when a step
      is full).

    Times of the host:

    * `latency`: from client to scheduler and back (HTTP, queues); `token_latency`: the same for a token of the prompt.
    * `request`, `prompt_token`: of the front end for a request and for a token of its prompt (tokenizer), one request
      after the other; `spacing`: until it takes the next; `encoding`: in place of `request` where nothing is generated,
      so that no tokens are streamed (0: the same).
    * `fronts`: one front end, or one for each data-parallel rank.
    * `dispatch`: of each kernel of a step with prompts, which no CUDA graph replays: a step takes at least that long.
    * `step`, `sequence`: of a step and of a sequence in it, of a server that streams to its clients (0: the profile's
      own); `stream`: decode steps from one message to the client to the next, the first included.
    * `spread_tpot`, `spread_ttft`: the distances of p10 and p90 from p50 of a latency under load, over those of the
      step times.
    """

    order: Literal["mixed", "prefill first"] = MIXED
    tokens: Count | None = None
    sequences: Natural = 0
    drafted: Natural = 0
    whole: bool = False
    reserved: Fraction = 0.0
    lag: Natural = 0
    poll: Count = 1
    gather: Natural = 0
    pause: Natural = 0
    piece: Natural = 0
    stream: Count = 1
    captured: Natural = 0
    masked: bool = False
    latency: Time = 0.0
    token_latency: Time = 0.0
    request: Time = 0.0
    prompt_token: Time = 0.0
    spacing: Time = 0.0
    encoding: Time = 0.0
    fronts: Literal["one", "ranks"] = "one"
    dispatch: Time = 0.0
    step: Time = 0.0
    sequence: Time = 0.0
    spread_tpot: tuple[Distance, Distance] = (1.0, 1.0)
    spread_ttft: tuple[Distance, Distance] = (1.0, 1.0)

    def front(self, prompt: Any) -> Any:
        """Seconds from one request to the next at the front end, by tokens of its prompt (a number or an array)."""
        return self.spacing + self.request + self.prompt_token * prompt

    def for_ranks(self, ranks: int) -> Scheduler:
        """The policy of data-parallel ranks, of which each may have a front end of its own.

        Together they take the next request sooner; one passes as slowly as by a single one.
        """
        if self.fronts == "one":
            return self
        request, token = self.request / ranks, self.prompt_token / ranks
        latency, beside = self.latency + self.request - request, self.token_latency + self.prompt_token - token
        return replace(self, fronts="one", request=request, prompt_token=token, latency=latency, token_latency=beside)

    def received(self, prompt: Any) -> Any:
        """Seconds until the scheduler has a request that waits for no other."""
        return self.latency + self.request + (self.token_latency + self.prompt_token) * prompt


PLAIN_SCHEDULER = Scheduler()

TIMES = ("latency", "token_latency", "request", "prompt_token", "spacing", "encoding", "dispatch", "step", "sequence")
"""The settings that a profile states with a unit of time."""


def parse_scheduler(content: object, where: str) -> Scheduler:
    """The policy under a profile's key 'scheduler'; `where` names the file in errors."""
    fields = dict(as_mapping(content, where, "scheduler"))
    for name in fields.keys() & TIMES:
        fields[name] = seconds(fields[name], f"scheduler.{name}", where)
    return record(Scheduler, fields, where, "scheduler")
