"""Random bodies of requests: some that a schema allows, and some that it may not."""

import json
import random

STRINGS = ["", "ASR", "0", "\u20ac", "\x00", "a\nb", "\ud800", "x" * 300, "GPU-1", "-1", "null", "'\"\\"]
NUMBERS = [0, 1, -1, 0.5, -0.0, 1e3, 1e300, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30]
ODD = [None, True, False, [], {}, [[]], {"": 0}, *STRINGS, *NUMBERS]
# Bytes that are no JSON, or JSON that few parsers like.
BYTES = [b"", b"{", b"[", b"nul", b"NaN", b"\xff\xfe", b'{"taskType":"\xff"}', b'{"taskType":"ASR",}', b"{}{}", b"\x00",
         b'{"taskType":"ASR"}\x00', b'{"taskType":"ASR","taskType":"NMT"}', b'{"maxWaitMs":1e999}',
         b"[" * 30000, b'{"a":' * 10000 + b"1" + b"}" * 10000,
         b'{"gpuKey":' + b"[" * 30000 + b"]" * 30000 + b"}",
         b"{" + b",".join(b'"%x":1' % i for i in range(6000)) + b"}", b" " * 65536]


class Bodies:
    """Bodies for one schema. The same seed makes the same bodies."""

    def __init__(self, schema, seed, known):
        self.schema = schema
        self.dice = random.Random(seed)
        self.known = known  # values that the server knows, by key

    def good(self, schema=None, key=None):
        """A value that the schema allows."""
        schema = self.schema if schema is None else schema
        if key in self.known:
            return self.dice.choice(self.known[key])
        if "enum" in schema:
            return self.dice.choice(schema["enum"])
        kinds = schema.get("type", "null")
        kind = self.dice.choice(kinds) if isinstance(kinds, list) else kinds
        if kind == "object":
            required = schema.get("required", [])
            return {name: self.good(one, name) for name, one in schema["properties"].items()
                    if name in required or self.dice.random() < 0.5}
        if kind == "integer":
            most = schema.get("maximum", 100)
            low = schema.get("minimum", 0)
            return self.dice.choice([low, min(most, low + 3), self.dice.randint(low, min(most, low + 50)), most])
        if kind == "number":
            return self.dice.choice([schema["minimum"], schema["maximum"], self.dice.uniform(0, 100), 50])
        if kind == "boolean":
            return self.dice.random() < 0.5
        if kind == "string":
            return self.dice.choice(["a", "call 7", "\u20ac", ""])
        return None

    def spoiled(self):
        """A good body with one to three random changes, as bytes."""
        if self.dice.random() < 0.1:
            return self.dice.choice(BYTES)
        body = self.good()
        for _ in range(self.dice.randint(1, 3)):
            body = self.change(body, self.schema)
        text = json.dumps(body).encode()
        if self.dice.random() < 0.1:
            at = self.dice.randrange(len(text) + 1)
            text = text[:at] + self.dice.randbytes(self.dice.randint(0, 2)) + text[at + 1:]
        return text

    def change(self, value, schema):
        if not isinstance(value, dict) or not value or self.dice.random() < 0.05:
            return self.dice.choice(self.edges(schema) if self.dice.random() < 0.5 else ODD)
        key = self.dice.choice(list(value))
        copy = dict(value)
        what = self.dice.random()
        if what < 0.2:
            del copy[key]
        elif what < 0.4:
            copy[self.dice.choice([key + "s", key.upper(), "x", ""])] = copy[key]
        else:
            copy[key] = self.change(copy[key], schema.get("properties", {}).get(key, {}))
        return copy

    @staticmethod
    def edges(schema):
        """Values at the ends of what the schema allows, and just beyond."""
        ends = [schema[end] + step for end in ("minimum", "maximum") if end in schema for step in (-1, 0, 1)]
        return ends + [value for value in schema.get("enum", []) if value] or ODD
