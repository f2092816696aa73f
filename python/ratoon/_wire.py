"""Frames and msgpack with the limits of the protocol.

A frame is a 4-byte big-endian length and a msgpack body. Everything here
treats its input as hostile: a length is checked before anything is allocated
for it, memory grows only with bytes that have arrived, and a body is walked
through once, without building values, before it is decoded.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, TypeVar

import msgpack

from . import _errors

#: Version of the protocol, stated in each call (protocol.Version).
VERSION = 1
#: Longest body of a frame, in bytes (protocol.MaxMessage).
MAX_MESSAGE = 64 << 20
#: Deepest nesting of arrays and maps (protocol.MaxDepth).
MAX_DEPTH = 32
#: Longest encoded payload, and longest arguments of a call, in bytes (protocol.MaxPayload).
MAX_PAYLOAD = 16 << 20
#: Longest label, in bytes of UTF-8 (protocol.MaxLabel).
MAX_LABEL = 256
#: Largest n of one branch (protocol.MaxBranch).
MAX_BRANCH = 1024
#: Most prompts of one batch (protocol.MaxBatch).
MAX_BATCH = 1024

_READ_AT_ONCE = 1 << 20
_LENGTH = struct.Struct(">I")

_SCALARS = (str, bool, int, float, bytes, bytearray, memoryview)
_KEYS = (str, bool, int, float, bytes)

_T = TypeVar("_T")


class Closed(Exception):
    """The connection ended before, or in the middle of, a frame."""


def pack_payload(value: object, name: str) -> bytes:
    """Encodes a value that a program passes to another timeline.

    Raises:
        TypeError: a value in it is of a type that msgpack has no form for.
        TooLarge: over MAX_PAYLOAD bytes or MAX_DEPTH levels.
        InvalidArgument: an int over 64 bits, or text that is no Unicode.
    """
    _check_encodable(value, name, 0)
    try:
        # surrogateescape: file names that are not UTF-8 come back as they were.
        body: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    except OverflowError as error:
        raise _errors.InvalidArgument(f"{name} holds an int of more than 64 bits") from error
    except (BufferError, ValueError) as error:  # a strided memoryview, lone surrogates
        raise _errors.InvalidArgument(f"{name} cannot be encoded: {error}") from error
    if len(body) > MAX_PAYLOAD:
        raise _errors.TooLarge(
            f"{name} takes {len(body)} bytes encoded, over the limit of {MAX_PAYLOAD}"
        )
    return body


def unpack_payload(body: bytes) -> Any:
    """Decodes what another timeline has packed; no bytes at all are None."""
    if not body:
        return None
    return _unpack(body, any_key=True, unicode_errors="surrogateescape")


def pack_map(value: Mapping[str, object]) -> bytes:
    """Encodes one of the protocol's own structures."""
    try:
        body: bytes = msgpack.packb(value, use_bin_type=True)
    except UnicodeEncodeError as error:
        raise _errors.InvalidArgument(f"text that is no Unicode: {error}") from error
    return body


def unpack_map(body: bytes) -> dict[str, Any]:
    """Decodes one of the protocol's own structures.

    Text that is not UTF-8 (guests choose labels and error texts) comes with
    replacement characters.
    """
    value = _unpack(body, any_key=False, unicode_errors="replace")
    if not isinstance(value, dict):
        raise _errors.ProtocolViolation(f"a map was expected, not {type(value).__name__}")
    return value


def take(record: Mapping[str, Any], name: str, kind: type[_T], default: _T) -> _T:
    """Returns a field of a decoded structure, or default if absent or nil.

    Raises:
        ProtocolViolation: the field is of another type.
    """
    value = record.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _errors.ProtocolViolation(
            f"field {name!r} is {type(value).__name__}, not {kind.__name__}"
        )
    return value


def take_index(record: Mapping[str, Any]) -> int | None:
    """Returns the field "index", None if it is absent or nil."""
    return None if record.get("index") is None else take(record, "index", int, 0)


def take_maps(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns a field that is an array of maps."""
    values = take(record, name, list, [])
    for value in values:
        if not isinstance(value, dict):
            raise _errors.ProtocolViolation(f"field {name!r} holds {type(value).__name__}")
    return values


def take_texts(record: Mapping[str, Any], name: str) -> list[str]:
    """Returns a field that is an array of strings."""
    values = take(record, name, list, [])
    for value in values:
        if not isinstance(value, str):
            raise _errors.ProtocolViolation(f"field {name!r} holds {type(value).__name__}")
    return values


def frame(value: Mapping[str, object]) -> bytes:
    """Encodes one frame."""
    body = pack_map(value)
    return _LENGTH.pack(len(body)) + body


def read_frame(connection: socket.socket) -> dict[str, Any]:
    """Reads one frame.

    Raises:
        Closed: the connection ended.
        ProtocolViolation: the frame is too long or malformed.
    """
    (length,) = _LENGTH.unpack(_read_exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE:
        raise _errors.ProtocolViolation(
            f"a frame of {length} bytes was announced, over the limit of {MAX_MESSAGE}"
        )
    return unpack_map(_read_exactly(connection, length))


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), _READ_AT_ONCE))
        if not part:
            raise Closed(f"after {len(data)} of {length} bytes")
        data += part
    return bytes(data)


def _unpack(body: bytes, *, any_key: bool, unicode_errors: str) -> Any:
    try:
        # Skipping builds nothing, so it finds a header that claims more than
        # there is before the decoder allocates what such headers claim.
        walker = msgpack.Unpacker(
            max_buffer_size=max(len(body), 1), max_array_len=len(body), max_map_len=len(body)
        )
        walker.feed(body)
        walker.skip()
        if walker.tell() != len(body):
            raise _errors.ProtocolViolation(f"{len(body) - walker.tell()} bytes after a value")
        value = msgpack.unpackb(
            body, raw=False, strict_map_key=not any_key, unicode_errors=unicode_errors
        )
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        # TypeError: a key that is an array or a map.
        raise _errors.ProtocolViolation(
            f"malformed msgpack: {type(error).__name__}: {error}"
        ) from error
    _check_decoded(value, 0)
    return value


def _check_encodable(value: object, name: str, depth: int) -> None:
    """Refuses, by its place, what would not arrive as the same kind of value."""
    if value is None or isinstance(value, _SCALARS):
        return
    if not isinstance(value, (list, tuple, dict)):
        raise TypeError(
            f"{name} is of type {_type_name(value)}; a payload is made of "
            "None, bool, int, float, str, bytes, list, tuple and dict"
        )
    if depth == MAX_DEPTH:  # also where a list that holds itself ends
        raise _errors.TooLarge(f"{name[:200]} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if key is not None and not isinstance(key, _KEYS):
                raise TypeError(f"{name} has a key of type {_type_name(key)}")
            _check_encodable(item, f"{name}[{key!r:.40}]", depth + 1)
        return
    for number, item in enumerate(value):
        if item is None or isinstance(item, _SCALARS):
            continue  # most lists are long and flat: no name is made for each item
        _check_encodable(item, f"{name}[{number}]", depth + 1)


def _check_decoded(value: object, depth: int) -> None:
    if value is None or isinstance(value, _SCALARS):
        return
    if not isinstance(value, (list, dict)):
        raise _errors.ProtocolViolation(f"a msgpack extension ({_type_name(value)})")
    if depth == MAX_DEPTH:
        raise _errors.ProtocolViolation(f"msgpack nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key in value:
            if key is not None and not isinstance(key, _KEYS):
                raise _errors.ProtocolViolation(f"a msgpack extension as a key ({key!r:.40})")
    for item in value.values() if isinstance(value, dict) else value:
        if not (item is None or isinstance(item, _SCALARS)):
            _check_decoded(item, depth + 1)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
