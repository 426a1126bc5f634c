"""Conditional changes compare and change one key as one step, at the site where they are made."""

from pywan.testing import two_sites

with two_sites("stock") as sites:
    stock = sites.ny.region("stock")
    print(stock.put_if_absent("bolts", 10))  # prints: None
    print(stock.put_if_absent("bolts", 99))  # prints: 10
    print(stock.replace("bolts", 10, 9))  # prints: True
    print(stock.replace("bolts", 10, 8))  # prints: False
    sites.settle()
    print(sites.ln.region("stock")["bolts"])  # prints: 9
