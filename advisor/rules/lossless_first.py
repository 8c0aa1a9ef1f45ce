"""What keeps the answers as they are comes first where it gains as much."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Price
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import Trial

KEEPING = (Price.LOSSLESS, Price.ENGINEERING)


def look(case: Case) -> Iterator[Said]:
    """Applies where some move that helps leaves the answers as they are."""
    tried = [
        (name, trial)
        for name, trial in case.trials_of(*{move.slot for move in case.moves.values() if move.kind is Kind.TECHNIQUE})
    ]
    gains = {name: case.gain(name) for name, _ in tried}
    keeping = [name for name, trial in tried if trial.price in KEEPING and gains[name] > HELPS and not _worse(trial)]
    if not keeping:
        return
    best = max(keeping, key=lambda name: (gains[name], name))
    yield Hint(tuple(keeping), "the answers stay as they are, and nothing is trained again")
    for name, trial in tried:
        if trial.price not in KEEPING and HELPS < gains[name] <= gains[best]:
            yield Caution(
                f"{best} gains at least as much, {gains[best]:.3g} against {gains[name]:.3g} times, and leaves the"
                " answers as they are",
                (name,),
            )


def _worse(trial: Trial) -> bool:
    """Whether a move breaks a limit, so that its gain is none."""
    return bool(trial.missed)


RULE = Rule(
    "lossless-first",
    "Changes of the system and of decoding keep the answers; compression trades some quality and comes after them.",
    ("yuan R11", "zhou 26", "miao D13"),
    look,
)
