"""The wire format: an Ethernet header, then kind, sender, number, context, tag, length."""

from struct import Struct

from protocols.core.frame_kinds import Kind

ETHERTYPE = 0x88B7
HEAD = Struct("!6s6sHBxHIHIH")
LETTER, RECEIPT = 1, 2
FIELDS = {"kind": (0, 1), "sender": (2, 2), "number": (4, 4)}
FLOW = ("kind",)

NAMES = {"kind": {LETTER: "LETTER", RECEIPT: "RECEIPT"}}
KIND = "kind"
KINDS = {
    LETTER: Kind("data", "POSTCARD {kind} {number} from node {sender}", message=("number",)),
    RECEIPT: Kind("ack", "POSTCARD {kind} {number}", message=("number",), back=True),
}
