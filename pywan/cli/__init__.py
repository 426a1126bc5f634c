"""The command line: one program in gfsh's grammar, for people (tables) and for programs (--json)."""
