"""What every other package may use: names, addresses, files, threads, clocks, and helpers for logs."""
