"""A queue and a region on disk: what a put returned from is there after the process was killed."""

import tempfile

import pywan

with tempfile.TemporaryDirectory() as folder, pywan.Locator("locator_ny", distributed_system_id=1, port=0) as locator:
    for run in ("first", "second"):
        with pywan.Cache("server_ny", locators=str(locator.address), dir=folder) as cache:
            cache.create_disk_store("store")
            sender = cache.create_gateway_sender(
                "ln",
                remote_distributed_system_id=2,
                enable_persistence=True,
                disk_store_name="store",
                manual_start=True,
            )
            orders = cache.create_region(
                "orders", type="REPLICATE_PERSISTENT", disk_store_name="store", gateway_sender_ids=["ln"]
            )
            sender.start()
            print(run, "run:", len(orders), "orders,", sender.queue_size, "events for London")
            orders["order-17"] = {"price": 101.5}
# prints: first run: 0 orders, 0 events for London
# prints: second run: 1 orders, 1 events for London
