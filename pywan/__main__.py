"""Owns `python -m pywan`: the same program as the command `pywan`."""

from pywan.cli.main import main

main()
