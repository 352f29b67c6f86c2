"""NIC models that execute firmware. They are pure: they use neither sockets nor the machine's clock.

`immediate` executes each of the firmware's actions at once. `priced` charges them the times of a profile, on the NIC's
processors, DMA engines and bus. Both send frames to a port and are called with received ones.
"""
