"""What every other package may use: names, addresses, files, threads, clocks, what is said in the log."""
