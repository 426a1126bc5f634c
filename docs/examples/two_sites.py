"""Two sites in one program: New York sends its region `orders` to London, and London sends its own back."""

import pywan

with (
    pywan.Locator("locator_ny", distributed_system_id=1, port=0) as locator_ny,
    pywan.Locator("locator_ln", distributed_system_id=2, port=0, remote_locators=str(locator_ny.address)) as locator_ln,
    pywan.Cache("server_ny", locators=str(locator_ny.address)) as ny,
    pywan.Cache("server_ln", locators=str(locator_ln.address)) as ln,
):
    ny.create_gateway_receiver(start_port=0, end_port=0)
    ln.create_gateway_receiver(start_port=0, end_port=0)
    to_ln = ny.create_gateway_sender("ln", remote_distributed_system_id=2, parallel=True)
    to_ny = ln.create_gateway_sender("ny", remote_distributed_system_id=1, parallel=True)
    orders_ny = ny.create_region("orders", type="PARTITION", gateway_sender_ids=["ln"])
    orders_ln = ln.create_region("orders", type="PARTITION", gateway_sender_ids=["ny"])

    orders_ny["order-17"] = {"price": 101.5}
    to_ln.wait_until_flushed()
    print(orders_ln["order-17"])  # prints: {'price': 101.5}

    orders_ln["order-17"] = {"price": 99.0}
    to_ny.wait_until_flushed()
    print(orders_ny["order-17"])  # prints: {'price': 99.0}

    to_ln.stop()
    to_ny.stop()
