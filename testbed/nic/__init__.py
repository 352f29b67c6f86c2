"""NIC models that execute firmware. They are pure: they use neither sockets nor the machine's clock.

`immediate` executes each of the firmware's actions at once. `priced` charges the actions the times of a profile, on the
NIC's processors, DMA engines and bus; `hosted` charges them to the host's cores. All send frames to a port and are called
with received frames. `completions` delivers completions to the host.
"""
