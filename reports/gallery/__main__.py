"""`python -m roofline.reports.gallery [--output FOLDER]`: draws the gallery anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from roofline.core.errors import RooflineError
from roofline.reports.gallery.build import FOLDER, build, write


def main() -> int:
    """Builds and writes the gallery; exit status 2 with one sentence where that fails."""
    parser = argparse.ArgumentParser(prog="python -m roofline.reports.gallery", description="Draw the gallery anew.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write to [default: the gallery's own]")
    folder: Path = parser.parse_args().output
    try:
        files = build()
        write(files, folder)
    except RooflineError as error:
        sys.stderr.write(f"roofline: {error}\n")
        return 2
    sys.stdout.write(f"wrote {len(files)} files to {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
