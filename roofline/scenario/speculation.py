"""Speculative decoding: what an iteration drafts, verifies and yields, and its accepted tokens in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from roofline.core.errors import RooflineError
from roofline.core.search import bracket_root
from roofline.specs.model import Model

TASKS = 0.12
"""Relative p10 and p90 of the tokens of an iteration that others measured, over those of one's own requests.

Three drafts yield 2.49 to 3.01 tokens, of four models with and without thinking (InferenceX, golden_al_distribution),
and 2.2 and 2.8 in outputs of 1,024 and 8,192 tokens (the streams of its runs on MI355X).
"""

BORROWED = 0.2
"""The same of tokens that were measured with another model: two tokens of EAGLE-3 in a row yield 1.74 to 2.43 an
iteration with ten models, 0.84 to 1.18 times their median (`roofline.techniques.acceptance`), beside TASKS."""


class Speculation(Struct, frozen=True):
    """Speculative decoding: draft tokens, verified in one pass of the target model.

    An iteration drafts `length` tokens, verifies `verified` draft tokens (a tree has more than its depth) plus one,
    and yields `accepted` tokens on average, including the target's own. The `draft` model runs `length` times over
    `draft_width` tokens; None drafts for free (n-grams, retrieval). `draft_depth` drafts with that fraction of the
    target's layers. `shared_ends`: sections (embedding, head) that the draft shares with its target. `slowdown`: the
    expected time of an iteration over that of its passes, measured where the CPU makes the drafts. `measured`: where
    `accepted` was measured, empty where it is given, and `borrowed` whether with another model.
    """

    length: int
    accepted: float
    verified: int
    draft: Model | None = None
    draft_width: int = 1
    draft_depth: float | None = None
    draft_passes: int | None = None
    shared_ends: tuple[str, ...] = ()
    slowdown: float = 1.0
    measured: str = ""
    borrowed: bool = False

    @property
    def error(self) -> float:
        """Relative p10 and p90 of `accepted`: none where it is given."""
        return BORROWED if self.borrowed else TASKS if self.measured else 0.0

    @property
    def scatter(self) -> float:
        """The variance of iterations over the tokens that they yield: of many, that of a renewal process (Cox 1962).

        An iteration yields k tokens or more with probability a^(k - 1), with `acceptance_rate` a, up to length + 1.
        """
        rate = acceptance_rate(self.accepted, self.length)
        square = sum((2 * more + 1) * rate**more for more in range(self.length + 1))
        return max(square - self.accepted**2, 0.0) / self.accepted**3

    @property
    def extends(self) -> bool:
        """Whether the draft reads the target's hidden states, first those of the tokens just verified (EAGLE, MTP)."""
        return bool(self.shared_ends) and self.draft_passes is None

    @property
    def drafts(self) -> int:
        """Passes of the draft per iteration: `length`, unless it proposes several tokens at once."""
        return self.length if self.draft_passes is None else self.draft_passes


def accepted_tokens(acceptance: float, length: int) -> float:
    """Expected tokens per iteration with acceptance rate a, (1 - a^(length+1)) / (1 - a) (Leviathan et al. 2023)."""
    if not 0 <= acceptance <= 1:
        raise RooflineError(f"the acceptance rate must be between 0 and 1, got {acceptance}")
    if acceptance == 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def iterations(tokens: Any, accepted: float) -> Any:
    """Iterations that yield `tokens` tokens at `accepted` each on average.

    The last one yields more than are wanted: the wanted ones end at any of its tokens, so that half of the others is
    lost on average. One token takes one iteration, a mean of less than one token that part of it.
    """
    if accepted == 1:
        return tokens
    return np.where(tokens < 1, tokens, np.maximum((tokens - 0.5) / accepted + 0.5, 1.0))


def acceptance_rate(accepted: float, length: int) -> float:
    """The acceptance rate with which `length` draft tokens yield `accepted` tokens, 1 to length + 1, per iteration.

    >>> round(acceptance_rate(2.811, 3), 3)
    0.768
    """
    if not 1 < accepted < length + 1:
        return 0.0 if accepted <= 1 else 1.0
    ends = (1.0 - accepted, length + 1.0 - accepted)
    return bracket_root(lambda rate: accepted_tokens(rate, length) - accepted, 0.0, 1.0, *ends, absolute=1e-12)[0]
