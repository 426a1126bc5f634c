"""A link that is down: both sites go on, and the later change of each key wins when the link is back."""

from pywan.testing import two_sites

with two_sites("orders") as sites:
    ny, ln = sites.ny.region("orders"), sites.ln.region("orders")
    for site in sites:
        site.sender.pause()  # As good as a cable that is cut.
    ny["order-17"] = "bought in New York"
    ln["order-17"] = "bought in London, a moment later"
    ny["order-18"] = "sold"
    print(sites.ny.sender.queue_size)  # prints: 2
    print(ny["order-17"])  # prints: bought in New York

    for site in sites:
        site.sender.resume()
    sites.settle()
    print(dict(ny) == dict(ln))  # prints: True
    print(ny["order-17"])  # prints: bought in London, a moment later
