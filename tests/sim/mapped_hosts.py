"""AM-II nodes that send requests to each other, and read their NICs' routes by privileged endpoints."""

from __future__ import annotations

from protocols.active_messages.am_errors import Returned
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.mapper_daemon import MapperDaemon
from protocols.am2.host.token import Token
from testbed.workloads.form import Native, Node
from testbed.workloads.workload_settings import Duration

TAG, ASK, ANSWER = 7, 1, 2
PAUSE = 1_000_000  # ns


class Daemons(Native[ActiveMessages]):
    """Every node asks all others once. daemon: each node has a mapper daemon. over: how long a node serves at most; it
    ends before if all others have replied to it and asked it.

    A node returns: nodes that have replied; routes, by node, in hexadecimal; leads, of its daemon, if it has one.
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

        def asks(token: Token) -> None:
            requesters.add(token.source.node)
            token.reply(ANSWER)

        endpoint.tag = TAG
        endpoint.set_handler(ASK, asks)
        endpoint.set_handler(ANSWER, lambda token: received.add(token.source.node))
        endpoint.error_handler = on_returned
        daemon = MapperDaemon(library, node)
        mapping = node.spawn(daemon.run(), "mapper") if self.daemon else None
        while node.now() < end_time and not len(received) == len(requesters) == len(indices):
            while peers:  # its program may not have begun
                await endpoint.request(indices[peers.pop()], ASK)
            await node.sleep(PAUSE)
            await endpoint.poll()
        routes = (await daemon.endpoint.read_routes()).paths
        del mapping  # it ends with the run
        return {
            "replies": sorted(received),
            "routes": {str(number): path.route.hex() for number, path in routes.items()},
            "leads": daemon.mapper.leads,
        }
