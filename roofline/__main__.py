"""`python -m roofline` is the command `roofline`."""

from roofline.cli import main

if __name__ == "__main__":  # processes that answer for the shared page import it
    main()
