"""The demo: three sites on one machine, fed by Spark, through faults, compared key by key."""
