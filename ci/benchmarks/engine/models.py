"""Small models, each for the engine and for SimPy. Each runs to its end and returns its last time, in ns.

Where SimPy has a cheaper idiom it is used: a put into a store without a bound is not waited for.
"""

from collections.abc import Generator

import simpy

from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.queues import Queue
from testbed.engine.server import Server

AT_ONCE = 100  # tasks or processes of the models with many
SERVERS = 4  # in a chain
COST = 13  # ns, of a job at the first of them

Steps = Generator[simpy.Event, object, None]


def tasks_that_sleep(count: int) -> int:
    """count: how many sleeps there are, together."""
    loop = Loop(VirtualClock())

    async def sleeper(pause: int) -> None:
        for _ in range(count // AT_ONCE):
            await loop.sleep(pause)

    for number in range(AT_ONCE):
        loop.spawn(sleeper(1 + number), f"sleeper {number}")
    loop.run()
    return loop.now()


def processes_that_sleep(count: int) -> int:
    environment = simpy.Environment()

    def sleeper(pause: int) -> Steps:
        for _ in range(count // AT_ONCE):
            yield environment.timeout(pause)

    for number in range(AT_ONCE):
        environment.process(sleeper(1 + number))
    environment.run()
    return int(environment.now)


class _Ticker:
    """Sets its next callback from the one before."""

    def __init__(self, loop: Loop, pause: int, left: int) -> None:
        self._loop = loop
        self._pause = pause
        self._left = left

    def tick(self, now: int) -> None:
        if self._left:
            self._left -= 1
            self._loop.at(now + self._pause, self.tick)


def callbacks(count: int) -> int:
    """count: how many callbacks there are, together."""
    loop = Loop(VirtualClock())
    for number in range(AT_ONCE):
        _Ticker(loop, 1 + number, count // AT_ONCE).tick(0)
    loop.run()
    return loop.now()


def queues(count: int) -> int:
    """Two tasks and two queues. count: round trips."""
    loop = Loop(VirtualClock())
    requests: Queue[int] = Queue("requests")
    replies: Queue[int] = Queue("replies")

    async def client() -> None:
        for number in range(count):
            await requests.put(number)
            if await replies.get() != number:
                raise AssertionError("a reply to another request")
            await loop.sleep(1)

    async def server() -> None:
        while True:
            await replies.put(await requests.get())

    loop.spawn(server(), "server", service=True)
    loop.complete(client(), "client")
    loop.close()
    return loop.now()


def stores(count: int) -> int:
    environment = simpy.Environment()
    requests, replies = simpy.Store(environment), simpy.Store(environment)

    def client() -> Steps:
        for number in range(count):
            requests.put(number)
            if (yield replies.get()) != number:
                raise AssertionError("a reply to another request")
            yield environment.timeout(1)

    def server() -> Steps:
        while True:
            replies.put((yield requests.get()))

    environment.process(server())
    environment.run(environment.process(client()))
    return int(environment.now)


def servers(count: int) -> int:
    """Tasks whose jobs pass a chain of servers, slower ones behind faster ones. count: jobs at servers, together."""
    loop = Loop(VirtualClock())
    chain = [Server(f"server {number}", loop) for number in range(SERVERS)]

    async def customer() -> None:
        for _ in range(count // AT_ONCE // SERVERS):
            for place, server in enumerate(chain):
                await server.use(COST + place)

    for number in range(AT_ONCE):
        loop.spawn(customer(), f"customer {number}")
    loop.run()
    return loop.now()


def resources(count: int) -> int:
    environment = simpy.Environment()
    chain = [simpy.Resource(environment) for _ in range(SERVERS)]

    def customer() -> Steps:
        for _ in range(count // AT_ONCE // SERVERS):
            for place, resource in enumerate(chain):
                with resource.request() as turn:
                    yield turn
                    yield environment.timeout(COST + place)

    for _ in range(AT_ONCE):
        environment.process(customer())
    environment.run()
    return int(environment.now)
