"""AM-II nodes that send requests to each other, and read their NICs' routes through privileged endpoints."""

from __future__ import annotations

from protocols.active_messages.am_errors import Returned
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.mapper_daemon import MapperDaemon
from protocols.am2.host.token import Token
from testbed.workloads.form import Native, Node
from testbed.workloads.workload_settings import Duration

TAG, REQUEST, REPLY = 7, 1, 2
PAUSE = 1_000_000  # ns


class Daemons(Native[ActiveMessages]):
    """Every node sends a request to each other one. daemon: each node has a mapper daemon. over: maximum ns that a node
    serves; it ends earlier if all others have replied to it and sent it a request.

    A node returns the nodes that have replied, the routes by node in hexadecimal, and whether its mapper leads.
    """

    protocol = "am2"

    daemon: bool = True
    over: Duration = 400_000_000

    async def program(self, library: ActiveMessages, node: Node) -> dict[str, object]:
        end_time = node.now() + self.over
        endpoint, received, requesters = library.allocate_bundle().allocate_endpoint(), set[int](), set[int]()
        peers = [rank for rank in range(len(node.names)) if rank != node.rank]
        indices = {rank: endpoint.map_any(library.name_of(rank), TAG) for rank in peers}

        def on_returned(message: Returned) -> None:
            peers.append(message.destination.node)

        def on_request(token: Token) -> None:
            requesters.add(token.source.node)
            token.reply(REPLY)

        endpoint.tag = TAG
        endpoint.set_handler(REQUEST, on_request)
        endpoint.set_handler(REPLY, lambda token: received.add(token.source.node))
        endpoint.error_handler = on_returned
        daemon = MapperDaemon(library, node)
        mapping = node.spawn(daemon.run(), "mapper") if self.daemon else None
        while node.now() < end_time and not len(received) == len(requesters) == len(indices):
            while peers:  # again if one was returned: the peer's program may not have started
                await endpoint.request(indices[peers.pop()], REQUEST)
            await node.sleep(PAUSE)
            await endpoint.poll()
        routes = (await daemon.endpoint.read_routes()).paths
        del mapping  # the task ends with the run
        return {
            "replies": sorted(received),
            "routes": {str(number): path.route.hex() for number, path in routes.items()},
            "leads": daemon.mapper.is_leading,
        }
