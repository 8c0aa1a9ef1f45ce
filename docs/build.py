"""Renew the generated parts of the documentation: `python -m docs.build`, with `--check` name the stale pages."""

import sys

from lab.documentation.build import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
