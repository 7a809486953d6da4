"""docs/openapi.yaml: what it promises, and what of an answer breaks a promise."""

import re

import yaml
from jsonschema import Draft202012Validator

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


class Problem(Exception):
    """The server and its description disagree, or the description is bad."""


def inlined(node, root):
    """The node with every $ref replaced; what stands beside a $ref stays. No schema refers to itself."""
    if isinstance(node, list):
        return [inlined(one, root) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" not in node:
        return {key: inlined(value, root) for key, value in node.items()}
    target = root
    for word in node["$ref"].removeprefix("#/").split("/"):
        if word not in target:
            raise Problem(f"{node['$ref']} leads nowhere")
        target = target[word]
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return {**inlined(target, root), **inlined(beside, root)}


def objects_of(schema):
    """All schemas of objects in a schema."""
    if isinstance(schema, list):
        for one in schema:
            yield from objects_of(one)
    elif isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for one in schema.values():
            yield from objects_of(one)


class Description:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
        self.operations = {}  # (path, METHOD): operation
        self.error = Draft202012Validator(inlined(document["components"]["schemas"]["Error"], document))
        for path, item in document["paths"].items():
            for method in METHODS:
                if method in item:
                    self.operations[path, method.upper()] = inlined(item[method], document)
        self.answers = {}  # (path, METHOD, code): response
        self.validators = {}
        self.types = {}
        for (path, method), operation in self.operations.items():
            for code, response in operation["responses"].items():
                key = (path, method, int(code))
                self.answers[key] = response
                for kind, content in response.get("content", {}).items():
                    self.types[key] = kind
                    self.validators[key] = self.validator(content["schema"], key)
            if self.request_schema(path, method):
                self.validator(self.request_schema(path, method), (path, method))

    @staticmethod
    def validator(schema, where):
        Draft202012Validator.check_schema(schema)
        for one in objects_of(schema):
            if one.get("additionalProperties") is not False:
                raise Problem(f"{where}: an object with more properties than it names: {list(one['properties'])}")
        return Draft202012Validator(schema)

    def methods(self, path):
        return {method for one, method in self.operations if one == path}

    def request_schema(self, path, method):
        body = self.operations[path, method].get("requestBody")
        return body["content"]["application/json"]["schema"] if body else None

    def check(self, path, method, answer):
        """The code, the headers and the body are as described."""
        where = (path, method, answer.status)
        if where not in self.answers:
            raise Problem(f"{method} {path}: {answer.status} is not described: {answer.text!r}")
        for name, header in self.answers[where].get("headers", {}).items():
            value = answer.headers.get(name.lower())
            if value is None and header.get("required"):
                raise Problem(f"{method} {path}: {answer.status} without the header {name}")
            if value is not None:
                must_match(Draft202012Validator(header["schema"]), value, f"{where}, {name}")
        if where in self.validators:
            check_json(self.validators[where], answer, where, self.types[where])
        elif answer.text:
            raise Problem(f"{where}: a body that is not described: {answer.text!r}")

    def check_error(self, answer, where):
        """The answer to a path or a method that is not described."""
        check_json(self.error, answer, where)


def must_match(validator, value, where):
    for wrong in validator.iter_errors(value):
        raise Problem(f"{where}: {value!r}: at {wrong.json_path}: {wrong.message}")


def check_json(validator, answer, where, kind="application/json"):
    """`body` of the answer is an object, whatever the type is."""
    if answer.headers.get("content-type") != kind:
        raise Problem(f"{where}: Content-Type is {answer.headers.get('content-type')}")
    try:
        body = answer.body
    except ValueError as wrong:
        raise Problem(f"{where}: {answer.text!r} is not JSON: {wrong}") from wrong
    must_match(validator, body, where)


def routes_of(source):
    """(path, METHOD) of each route in the server's own list; words in braces are stars."""
    with open(source, encoding="utf-8") as file:
        found = set(re.findall(r'\{"([A-Z]+)", "(/v1/[^"]*)",', file.read()))
    return {(path, method) for method, path in found}


def check_routes(description, source):
    described = {(re.sub(r"\{[^}]*\}", "*", path), method) for path, method in description.operations}
    difference = routes_of(source) ^ described
    if difference:
        raise Problem(f"only the server or only the description has {sorted(difference)}")
