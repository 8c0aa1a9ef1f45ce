"""Folders of the checkout that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
CONFIGS = DATA / "configs"
