"""An ExportTraceServiceRequest in protobuf: resources and scopes are walked, spans go to the layouts."""

from __future__ import annotations

from .body import OtlpError, OtlpLimits, TooManyFieldsError
from .columns import Export, Scope, Wanted
from .layouts import Layouts
from .wire import FIXED64, LENGTH, MOST_FIELDS, VARINT, fields, signed, varint

_NAME_BYTES = 256


class ProtobufReader:
    """Reads exports. Keeps what it learned of their spans' layouts."""

    def __init__(self, wanted: Wanted, limits: OtlpLimits) -> None:
        self._wanted = wanted
        self._limits = limits
        self._layouts = Layouts()

    def read(self, body: bytes) -> Export:
        """The spans of a body. OtlpError for anything that is no export; never another error."""
        try:
            return self._read(body)
        except (IndexError, ValueError) as error:
            if isinstance(error, OtlpError):
                raise OtlpError(f"not an ExportTraceServiceRequest: {error}") from None
            raise OtlpError("not an ExportTraceServiceRequest: it ends in the middle of a field") from None

    def _read(self, body: bytes) -> Export:
        limits = self._limits
        scopes: list[Scope] = []
        left, cut_spans, cut_attributes, walked = limits.spans, 0, 0, 0
        for number, wire, at, end in fields(body, 0, len(body)):
            walked += 1
            if number != 1 or wire != LENGTH:
                continue
            resource, groups, steps = self._resource_spans(body, at, end)
            walked += steps
            for group_at, group_end in groups:
                most = left if len(scopes) < limits.scopes else 0
                name, spans, count, steps = _scope_spans(body, group_at, group_end, most)
                left -= min(count, most)
                cut_spans += max(0, count - most)
                if spans:
                    columns, cut, fields_walked = self._layouts.read(spans, self._wanted, limits.attributes)
                    scopes.append(Scope(resource, name, columns))
                    cut_attributes += cut
                    steps += fields_walked
                walked += steps
                if walked > limits.fields:
                    raise TooManyFieldsError(f"more than {limits.fields} fields")
        return Export(scopes, cut_spans, cut_attributes)

    def _resource_spans(self, body: bytes, at: int, end: int) -> tuple[dict[str, str], list[tuple[int, int]], int]:
        """Attributes of the resource, places of its ScopeSpans, fields walked."""
        resource: dict[str, str] = {}
        groups: list[tuple[int, int]] = []
        steps = 0
        for number, wire, begin, until in fields(body, at, end):
            steps += 1
            if number == 1 and wire == LENGTH:
                for inner, inner_wire, value_at, value_end in fields(body, begin, until):
                    steps += 1
                    if inner == 1 and inner_wire == LENGTH and steps < self._limits.attributes * 4:
                        key, value = _key_value(body, value_at, value_end)
                        if key in self._wanted.resource:
                            resource[key] = value
            elif number == 2 and wire == LENGTH:
                groups.append((begin, until))
        return resource, groups, steps


def _scope_spans(body: bytes, at: int, end: int, most: int) -> tuple[str, dict[int, list[bytes]], int, int]:
    """The scope's name, the bytes of the first `most` spans by their length, how many there are, fields walked."""
    spans: dict[int, list[bytes]] = {}
    name, count, steps = "", 0, 0
    while at < end:
        if body[at] != 0x12:  # anything but a span
            steps += 1
            if steps > MOST_FIELDS:
                raise TooManyFieldsError(f"a scope of more than {MOST_FIELDS} fields that are no spans")
            number, wire, value_at, value_end = next(fields(body, at, end))
            if number == 1 and wire == LENGTH:
                name = _scope_name(body, value_at, value_end) or name
            at = value_end
            continue
        size, at = body[at + 1], at + 2
        if size > 0x7F:  # the lengths of most spans: two digits
            more_digits = body[at]
            if more_digits < 0x80:
                size, at = size & 0x7F | more_digits << 7, at + 1
            else:
                size, at = varint(body, at - 1)
        until = at + size
        if until > end:
            raise OtlpError("a span is longer than its scope")
        count += 1
        if count <= most:
            alike = spans.get(size)
            if alike is None:
                spans[size] = [body[at:until]]
            else:
                alike.append(body[at:until])
        at = until
    return name, spans, count, steps


def _scope_name(body: bytes, at: int, end: int) -> str:
    for number, wire, begin, until in fields(body, at, end):
        if number == 1 and wire == LENGTH:
            return _text(body, begin, until)
    return ""


def _key_value(body: bytes, at: int, end: int) -> tuple[str, str]:
    """Key and value of a resource attribute; texts and integers only, anything else is empty."""
    key = value = ""
    for number, wire, begin, until in fields(body, at, end):
        if number == 1 and wire == LENGTH:
            key = _text(body, begin, until)
        elif number == 2 and wire == LENGTH:
            for kind, inner, value_at, value_end in fields(body, begin, until):
                if kind == 1 and inner == LENGTH:
                    value = _text(body, value_at, value_end)
                elif kind == 3 and inner == VARINT:
                    value = str(signed(varint(body, value_at)[0]))
                elif kind == 4 and inner == FIXED64:
                    value = ""
    return key, value


def _text(body: bytes, at: int, end: int) -> str:
    return body[at : min(end, at + _NAME_BYTES)].decode("utf-8", "replace")
