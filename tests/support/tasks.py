"""Owns the tasks of clients that send rows in bulk."""

from pywan.client import DataConnection
from pywan.testing.waiting import LIMIT_S

RUN = b"0123456789abcdef"


def task(site, number, run=RUN, region="data", timeout=LIMIT_S):
    return DataConnection.open(str(site.locator.address), region=region, run_id=run, task=number, timeout=timeout)


def send(site, number, rows, **more):
    with task(site, number, **more) as connection:
        connection.put_pairs(rows)
        return connection.commit()
