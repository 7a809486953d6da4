#!/usr/bin/env python3
"""check.py BUILD: the scheduler's real answers against docs/openapi.yaml.

Every answer that is described must be reached, and every answer must be described. Random bodies follow;
their seed is fixed.
"""

import json
import os
import sys
import time

sys.dont_write_bytecode = True

from bodies import Bodies  # noqa: E402
from description import Description, Problem, check_routes  # noqa: E402
from requests_to_all import Requests  # noqa: E402
from scheduler import Scheduler  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEED = 20261119
BODIES = 600  # of each kind, for each request with a body

# Values of good bodies that the server knows. Waits and holds are short, so that leases come and go.
KNOWN = {"taskType": ["ASR", "NMT", "TTS", "SEMANTIC_REPAIR"], "gpuKey": [0, "0"], "maxWaitMs": [0, 1, 3],
         "holdMaxMs": [1, 2, 20], "ownerPid": [None, os.getpid()], "withChildren": [True, False]}


def requests(scheduler, description):
    made = Requests(scheduler, description)
    made.all()
    missing = set(description.answers) - made.reached
    if missing:
        raise Problem(f"described, and not reached: {sorted(missing)}")
    return len(made.reached)


def is_valid(validator, text):
    """Whether a body is allowed. An empty one stands for an empty object."""
    try:
        return validator.is_valid(json.loads(text) if text else {})
    except (ValueError, RecursionError):
        return False


def lease_of(answer):
    return answer.body.get("leaseId", "none")


def fuzz(scheduler, description):
    codes = {}
    for path, method in description.operations:
        schema = description.request_schema(path, method)
        if schema is None:
            continue
        validator = description.validator(schema, path)
        bodies = Bodies(schema, SEED, KNOWN)
        for i in range(2 * BODIES):
            good = i % 2 == 0
            text = json.dumps(bodies.good()).encode() if good else bodies.spoiled()
            lease = lease_of(scheduler.ask("POST", "/v1/leases", {"taskType": "ASR"}))
            answer = scheduler.ask(method, path.replace("{gpu}", "0").replace("{id}", lease), text)
            # Leases that stay would make the next requests wait.
            for one in {lease, lease_of(answer)}:
                scheduler.ask("DELETE", f"/v1/leases/{one}")
            description.check(path, method, answer)
            where = f"{method} {path}: {answer.status} {answer.text[:300]!r} for {text[:300]!r}"
            if answer.status >= 500 and answer.status != 503:
                raise Problem(where)
            if not is_valid(validator, text) and answer.status not in (400, 404):
                raise Problem(f"the description does not allow what the server takes: {where}")
            if good and answer.status in (400, 404) and path != "/v1/config":
                raise Problem(f"the server refuses what the description allows: {where}")
            codes[answer.status] = codes.get(answer.status, 0) + 1
    return codes


def main(build):
    began = time.monotonic()
    scheduler = None
    wrong = ""
    try:
        description = Description(os.path.join(ROOT, "docs/openapi.yaml"))
        check_routes(description, os.path.join(ROOT, "src/daemon/lease/api.cpp"))
        scheduler = Scheduler(build)
        reached = requests(scheduler, description)
        codes = fuzz(scheduler, description)
    except Problem as problem:
        wrong = str(problem)
    finally:
        log = scheduler.end() if scheduler else ""
    if "the scheduler ended with" in log:
        wrong = f"{wrong}\n{log}"
    if wrong:
        print(wrong.strip())
        return 1
    print(f"{reached} answers as described; random bodies: {dict(sorted(codes.items()))}; "
          f"{time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check.py BUILD")
    sys.exit(main(os.path.abspath(sys.argv[1])))
