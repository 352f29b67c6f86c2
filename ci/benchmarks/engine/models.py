"""Small models, each for the engine and for SimPy. Each function runs a model to its end and returns the end time, in ns.

SimPy's cheapest idiom is used: a put into an unbounded store is not awaited.
"""

from collections.abc import Generator

import simpy

from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.queues import Queue
from testbed.engine.server import Server

CONCURRENCY = 100  # tasks or processes
SERVERS = 4  # in a chain
COST = 13  # ns, of a job at the first server

Steps = Generator[simpy.Event, object, None]


def tasks_that_sleep(count: int) -> int:
    """Run tasks that sleep. count: total number of sleeps."""
    loop = Loop(VirtualClock())

    async def sleeper(pause: int) -> None:
        for _ in range(count // CONCURRENCY):
            await loop.sleep(pause)

    for number in range(CONCURRENCY):
        loop.spawn(sleeper(1 + number), f"sleeper {number}")
    loop.run()
    return loop.now()


def processes_that_sleep(count: int) -> int:
    environment = simpy.Environment()

    def sleeper(pause: int) -> Steps:
        for _ in range(count // CONCURRENCY):
            yield environment.timeout(pause)

    for number in range(CONCURRENCY):
        environment.process(sleeper(1 + number))
    environment.run()
    return int(environment.now)


class _Ticker:
    """A chain of callbacks, each of which sets the next one."""

    def __init__(self, loop: Loop, pause: int, remaining: int) -> None:
        self._loop = loop
        self._pause = pause
        self._remaining = remaining

    def tick(self, now: int) -> None:
        if self._remaining:
            self._remaining -= 1
            self._loop.at(now + self._pause, self.tick)


def callbacks(count: int) -> int:
    """Run chains of callbacks. count: total number of callbacks."""
    loop = Loop(VirtualClock())
    for number in range(CONCURRENCY):
        _Ticker(loop, 1 + number, count // CONCURRENCY).tick(0)
    loop.run()
    return loop.now()


def queues(count: int) -> int:
    """Run two tasks that exchange messages through two queues. count: number of round trips."""
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
    """Run tasks whose jobs pass a chain of servers, the fastest first. count: total number of jobs."""
    loop = Loop(VirtualClock())
    chain = [Server(f"server {number}", loop) for number in range(SERVERS)]

    async def customer() -> None:
        for _ in range(count // CONCURRENCY // SERVERS):
            for index, server in enumerate(chain):
                await server.use(COST + index)

    for number in range(CONCURRENCY):
        loop.spawn(customer(), f"customer {number}")
    loop.run()
    return loop.now()


def resources(count: int) -> int:
    environment = simpy.Environment()
    chain = [simpy.Resource(environment) for _ in range(SERVERS)]

    def customer() -> Steps:
        for _ in range(count // CONCURRENCY // SERVERS):
            for index, resource in enumerate(chain):
                with resource.request() as turn:
                    yield turn
                    yield environment.timeout(COST + index)

    for _ in range(CONCURRENCY):
        environment.process(customer())
    environment.run()
    return int(environment.now)
