"""Which tests, C tests and simulated worlds see a change: chosen by rules on folders, printed with their reasons, and
run (`make test-changed`, docs/testing.md)."""
