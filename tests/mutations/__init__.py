"""Pieces of the product, most of them of the protocol of a site. Each has a patch that takes it out, and a command says
which check of the simulated site, or which test, sees the loss (docs/testing.md)."""
