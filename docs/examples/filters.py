"""A filter decides which events leave a site; a substitution filter decides what of them leaves."""

import pywan
from pywan.testing import two_sites


class OnlyLargeOrders(pywan.GatewayEventFilter):
    def before_enqueue(self, event):
        return event.value["amount"] >= 1000


class WithoutNames(pywan.GatewayEventSubstitutionFilter):
    def get_substitute_value(self, event):
        return {"amount": event.value["amount"]}


with two_sites(
    "orders", gateway_event_filters=[OnlyLargeOrders()], gateway_event_substitution_filter=WithoutNames()
) as sites:
    orders = sites.ny.region("orders")
    orders["small"] = {"amount": 10, "customer": "Jones"}
    orders["large"] = {"amount": 5000, "customer": "Smith"}
    sites.settle()
    print(dict(sites.ln.region("orders")))  # prints: {'large': {'amount': 5000}}
    print(sites.ny.sender.ledger()["filtered_before_enqueue"])  # prints: 1
