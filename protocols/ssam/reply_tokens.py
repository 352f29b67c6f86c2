"""Tokens: a handler's access to the message that it handles, through which a request's handler may reply once."""

from __future__ import annotations

from typing import Final

from protocols.active_messages.am_errors import RuleError
from protocols.active_messages.endpoint_names import NO_HANDLER, EndpointName, MessageContent, RequestName
from protocols.active_messages.observer import Observer
from protocols.core.firmware import Buffer
from protocols.ssam.cells import DATA
from protocols.ssam.handler_addresses import MEDIUM, SHORT, Address, checked_handler, pack_words
from protocols.ssam.host import Reply


class Token:
    """One message, while its handler runs. Implements `protocols.active_messages.am_interface.Token`."""

    __slots__ = ("_is_over", "_local", "_observer", "_reply", "_request", "source")

    def __init__(
        self, local: int, source: EndpointName, request: RequestName | None = None, observer: Observer | None = None
    ) -> None:
        """local: number of the receiving endpoint. request: name of the request; None: the message is a reply."""
        self.source: Final = source
        """AM_GetSourceEndpoint: the sender."""
        self._local = local
        self._request = request
        self._observer = observer
        self._reply: Reply | None = None
        self._is_over = False

    @property
    def is_reply(self) -> bool:
        """Whether the message is a reply."""
        return self._request is None

    def reply(self, handler: int, *words: int) -> None:
        """AM_ReplyM: send a short reply of at most 10 words. Raises RuleError if the handler may not reply, and
        ValueError for an invalid handler or word."""
        self._set_reply(SHORT, handler, words, b"")

    def reply_medium(self, handler: int, data: Buffer, *words: int) -> None:
        """AM_ReplyIM: reply with data, which is copied; words and data take 40 bytes at most. Otherwise as `reply`."""
        self._set_reply(MEDIUM, handler, words, data)

    def end(self) -> Reply | None:
        """Invalidate the token after the handler has ended; return the handler's reply, or None if the request is only
        acknowledged. For the library only."""
        self._is_over = True
        if self._observer is not None and self._request is not None and self._reply is None:
            self._observer.reply_sent(self._local, self._request, MessageContent(NO_HANDLER, (), b""))
        return self._reply

    def _set_reply(self, form: int, handler: int, words: tuple[int, ...], data: Buffer) -> None:
        if self._is_over:
            raise RuleError("the handler has ended: a token is valid only while its handler runs")
        if self._request is None:
            raise RuleError("a reply's handler may send nothing")
        if self._reply is not None:
            raise RuleError("this request has been replied to: a handler may reply only once")
        body = pack_words(words, data, DATA)
        address = Address(form, len(words), self.source.endpoint, self._local, 0, checked_handler(handler))
        self._reply = Reply(address.pack(), body)
        if self._observer is not None:
            self._observer.reply_sent(self._local, self._request, MessageContent(handler, words, data))
