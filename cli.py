"""The command line of a checkout that is not installed: `python cli.py` is the installed `roofline`."""

from roofline.cli import main

if __name__ == "__main__":
    main()
