"""A workload of AM-II whose programs only poll."""

from __future__ import annotations

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.form import Native, Node

TAG, COUNT = 5, 20
ASK, ANSWER = 1, 2
SQUARES = [number * number for number in range(COUNT)]


class PollingWorkload(Native[ActiveMessages]):
    """Request squares from the next node, one at a time. awaits: the program awaits its polls."""

    protocol = "am2"

    awaits: bool = True

    async def program(self, library: ActiveMessages, node: Node) -> list[int]:
        meeting_point = Collectives(library, node, library.size)
        bundle = library.allocate_bundle()
        endpoint = bundle.allocate_endpoint()
        endpoint.tag = TAG
        request_words: list[int] = []
        answers: list[int] = []

        def ask(token: Token, number: int) -> None:
            request_words.append(number)
            token.reply(ANSWER, number * number)

        endpoint.set_handler(ASK, ask)
        endpoint.set_handler(ANSWER, lambda _, word: answers.append(word))
        await meeting_point.barrier()
        endpoint.map(0, EndpointName((library.node + 1) % library.size, 1), TAG)
        for number in range(COUNT):
            while not endpoint.try_request(0, ASK, number):
                await endpoint.poll()
            while len(answers) <= number:
                if self.awaits:
                    await endpoint.poll()
                else:
                    endpoint.poll()  # type: ignore[unused-coroutine]  # the mistake that must be reported
        while len(request_words) < COUNT:
            await bundle.poll()
        await meeting_point.barrier()
        return answers
