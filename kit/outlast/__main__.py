"""`python -m outlast` is the command `outlast`."""

from outlast.cli import main

main(prog_name="python -m outlast")
