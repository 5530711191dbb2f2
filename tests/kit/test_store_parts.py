"""Values in rows and parts: what goes in comes out, and lists that have much in common share it."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from outlast.store.parts import PAGE, Payload, Value, needed_by, pack, unpack

payloads = st.builds(Payload, st.sampled_from(["null", "msgpack"]), st.binary(max_size=80))
values = st.lists(st.one_of(payloads, st.lists(payloads, max_size=PAGE**2 + 3)), max_size=4)


def _read(body: bytes, parts: Mapping[bytes, bytes]) -> tuple[Payload | None, list[Value]]:
    own, found, _ = unpack([body], lambda digests: {digest: parts[digest] for digest in digests})[0]

    def whole(value: Value) -> Value:
        if isinstance(value, Payload | bytes):
            return value if isinstance(value, Payload) else Payload.of(parts[value])
        return [Payload.of(parts[element]) if isinstance(element, bytes) else element for element in value]

    return own, [whole(value) for value in found]


@given(own=st.none() | payloads, given_values=values)
def test_what_is_packed_is_unpacked(own: Payload | None, given_values: list[Value]) -> None:
    packed = pack(given_values, own=own)
    assert _read(packed.body, packed.parts) == (own, given_values)
    assert needed_by([packed.body], lambda digests: {digest: packed.parts[digest] for digest in digests}) == set(
        packed.parts
    )


def test_a_list_that_grows_costs_what_was_added() -> None:
    elements = [Payload("msgpack", f"{number}".encode() * 100) for number in range(2000)]
    known: set[bytes] = set()
    costs = []
    for length in range(1, len(elements)):
        packed = pack([elements[:length]])
        new = packed.parts.keys() - known
        known |= new
        costs.append(len(packed.body) + sum(len(packed.parts[digest]) for digest in new))
    assert sum(costs[-200:]) < 1.5 * sum(costs[200:400])


def test_a_digest_stands_for_a_part_that_is_there() -> None:
    element = Payload("msgpack", b"long " * 100)
    (digest,) = pack([element]).parts
    packed = pack([[digest, digest]])
    assert packed.parts == {}
    assert packed.body == pack([[element, element]]).body
