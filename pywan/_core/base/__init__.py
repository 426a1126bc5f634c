"""What every room needs: errors out of a status, clocks, the tables of counters."""
