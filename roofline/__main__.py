"""`python -m roofline` is the command `roofline`."""

from roofline.cli import main

main()
