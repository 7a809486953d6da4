"""Requests that reach every answer of docs/openapi.yaml."""

import subprocess
import time

from description import Problem
from scheduler import PATIENCE, Answer, Event, begin

LEASES = "/v1/leases"
THERE = "/v1/gpus/{gpu}/leases"
LEASE = "/v1/leases/{id}"
RENEW = "/v1/leases/{id}/renew"
CONFIG = "/v1/config"
STREAM = "/v1/status/stream"
STREAMS = 32  # over TCP
ASKED = ((LEASES, LEASES), (THERE, "/v1/gpus/0/leases"))  # a path, and one request's

BODY_WORDS = ("POST", "PATCH")  # methods with a body
TOO_LONG = 64 * 1024 + 1


class Requests:
    def __init__(self, scheduler, description):
        self.scheduler = scheduler
        self.description = description
        self.reached = set()

    def ask(self, code, method, path, at=None, body=None, headers=None, tcp=False, says=None):
        """Fails unless the answer has this code and is as described; `says`: what its body must hold."""
        answer = self.scheduler.ask(method, at or path, body, headers, tcp)
        return self.judge(answer, code, method, path, says)

    def judge(self, answer, code, method, path, says=None):
        if answer.status != code:
            raise Problem(f"{method} {path}: {answer.status} instead of {code}: {answer.text!r}")
        self.description.check(path, method, answer)
        self.reached.add((path, method, code))
        body = answer.body if answer.text else {}
        for key, value in (says or {}).items():
            if body.get(key) != value:
                raise Problem(f"{method} {path}: {key} is not {value!r}: {body}")
        return body

    def lease(self, **more):
        return self.ask(201, "POST", LEASES, body={"taskType": "ASR", **more})["leaseId"]

    def drop(self, lease):
        self.ask(204, "DELETE", LEASE, f"{LEASES}/{lease}")

    def configure(self, **leases):
        self.ask(200, "PATCH", CONFIG, body={"leases": leases})

    # --- what a lease goes through -----------------------------------------------------------------

    def grant(self):
        gpu = self.ask(200, "GET", "/v1/status")["gpus"][0]["gpuKey"]
        for path, at in (*ASKED, (THERE, f"/v1/gpus/{gpu}/leases")):
            whole = {"taskType": "NMT", "maxWaitMs": 0, "holdMaxMs": 9000, "busyPolicy": "WAIT", "ownerPid": None}
            whole["hint"] = {"estimatedAudioMs": 9000, "estimatedGpuHoldMs": 100}
            body = self.ask(201, "POST", path, at, whole | {"trace": "call 7"}, says={"trace": "call 7", "gpuKey": gpu})
            at = f"{LEASES}/{body['leaseId']}"
            self.ask(200, "GET", LEASE, at, says={"state": "ACTIVE"})
            self.ask(200, "GET", "/v1/status")  # with raised marks
            self.ask(200, "POST", RENEW, f"{at}/renew")
            self.ask(200, "POST", RENEW, f"{at}/renew", {"holdMaxMs": 5000})
            self.ask(200, "GET", LEASES)
            self.drop(body["leaseId"])
        over_tcp = self.ask(201, "POST", LEASES, body={"taskType": "TTS"}, tcp=True)["leaseId"]
        self.ask(200, "GET", LEASES, tcp=True)
        self.ask(200, "GET", LEASES, f"{LEASES}?limit=1", says={"total": 1})
        self.ask(400, "GET", LEASES, f"{LEASES}?limit=0")
        self.drop(over_tcp)
        self.ask(200, "GET", "/v1/classes")
        self.ask(200, "GET", CONFIG)

    def stream(self):
        """The first event is the status, and a lease changes it. TCP has a bound."""
        connections = [self.scheduler.connection(tcp=True) for _ in range(STREAMS)]
        for connection in connections:
            begin(connection, "GET", STREAM)
            response = connection.getresponse()
            status = self.judge(Event(response), 200, "GET", STREAM)
        lease = self.lease()
        while status["gpus"][0]["active_leases"] == 0:
            event = Event(response)
            if event.fields.get(b"event") != b"status":
                raise Problem(f"{STREAM}: {event.fields}")
            status = self.judge(event, 200, "GET", STREAM)
        self.drop(lease)
        self.ask(429, "GET", STREAM, tcp=True)
        for connection in connections:
            connection.close()

    def refuse(self):
        self.configure(slots=1)
        holder = self.lease()
        for path, at in ASKED:
            skipped = {"result": "SKIPPED", "reason": "GPU_BUSY"}
            self.ask(409, "POST", path, at, {"taskType": "SEMANTIC_REPAIR"}, says=skipped)
            falls = {"taskType": "NMT", "busyPolicy": "FALLBACK_CPU", "trace": "t"}
            self.ask(409, "POST", path, at, falls, says={"result": "FALLBACK_CPU", "trace": "t"})
            waits = {"taskType": "ASR", "maxWaitMs": 30}
            self.ask(503, "POST", path, at, waits, says={"result": "TIMEOUT", "reason": "GPU_BUSY"})
            self.configure(queue=0)
            self.ask(429, "POST", path, at, {"taskType": "ASR"}, says={"result": "QUEUE_FULL"})
            self.configure(queue=1024)
            self.withdraw(path, at)
        self.wait_for(holder)
        self.configure(slots=4)

    def begin_to_wait(self, at):
        """A connection with a request that waits, and the path of that request."""
        connection = self.scheduler.connection()
        begin(connection, "POST", at, {"taskType": "ASR", "maxWaitMs": PATIENCE * 1000})
        until = time.monotonic() + PATIENCE
        waiting = []
        while not waiting and time.monotonic() < until:
            leases = self.ask(200, "GET", LEASES)["leases"]
            waiting = [one for one in leases if one["state"] == "WAITING"]
        return connection, f"{LEASES}/{waiting[0]['leaseId']}"

    def withdraw(self, path, at):
        connection, waiting = self.begin_to_wait(at)
        self.ask(204, "DELETE", LEASE, waiting)
        self.judge(Answer(connection.getresponse()), 410, "POST", path, {"reason": "WITHDRAWN"})
        connection.close()

    def wait_for(self, holder):
        """A request waits: it is seen, cannot be renewed, and gets the lease of the holder."""
        connection, at = self.begin_to_wait(LEASES)
        self.ask(200, "GET", LEASE, at, says={"state": "WAITING"})
        self.ask(409, "POST", RENEW, f"{at}/renew")
        self.drop(holder)
        granted = self.judge(Answer(connection.getresponse()), 201, "POST", LEASES)
        connection.close()
        self.drop(granted["leaseId"])

    def take_away(self):
        owner = subprocess.Popen(["sleep", "600"])
        try:
            orphan = self.lease(ownerPid=owner.pid)
        finally:
            owner.kill()
            owner.wait()
        for lease, reason in ((self.lease(holdMaxMs=1), "OVERDUE"), (orphan, "OWNER_GONE")):
            at = f"{LEASES}/{lease}"
            until = time.monotonic() + PATIENCE
            while self.scheduler.ask("GET", at).status == 200 and time.monotonic() < until:
                time.sleep(0.005)
            self.ask(410, "GET", LEASE, at, says={"reason": reason})
            self.ask(410, "DELETE", LEASE, at, says={"reason": reason})
            self.ask(410, "POST", RENEW, f"{at}/renew", says={"reason": reason})

    # --- bad requests ------------------------------------------------------------------------------

    def mistakes(self):
        for path, at in ASKED:
            self.ask(400, "POST", path, at, b"{")
            self.ask(400, "POST", path, at, {"taskType": "ASR", "maxWaitMs": -1})
            classes = ["ASR", "NMT", "TTS", "SEMANTIC_REPAIR"]
            self.ask(400, "POST", path, at, {"taskType": "XYZ"}, says={"classes": classes})
            self.ask(400, "POST", path, at, {"taskType": "ASR", "trace": "\u20ac" * 86})
            self.ask(400, "POST", path, at, {"taskType": "ASR", "ownerPid": 1}, tcp=True)
        self.ask(404, "POST", LEASES, body={"taskType": "ASR", "gpuKey": 9})
        self.ask(404, "POST", THERE, "/v1/gpus/9/leases", {"taskType": "ASR"})
        self.ask(400, "PATCH", CONFIG, body={"gpuUsage": {"baseHighWater": 1, "baseLowWater": 2}})
        self.ask(403, "PATCH", CONFIG, body={}, tcp=True)
        lease = self.lease()
        unknown = "0" * len(lease)
        for method, path in (("GET", LEASE), ("DELETE", LEASE), ("POST", RENEW)):
            self.ask(404, method, path, path.replace("{id}", unknown))
            self.ask(403, method, path, path.replace("{id}", lease), tcp=True)
        self.ask(400, "POST", RENEW, f"{LEASES}/{lease}/renew", {"holdMaxMs": 0})
        self.drop(lease)

    def doors(self):
        """What is refused before anybody looks at the path."""
        for path, method in self.description.operations:
            at = path.replace("{gpu}", "0").replace("{id}", "none")
            self.ask(403, method, path, at, headers={"Origin": "http://localhost"})
            self.ask(403, method, path, at, headers={"Sec-Fetch-Site": "cross-site"})
            self.ask(403, method, path, at, headers={"Host": "evil.example"}, tcp=True)
            if method in BODY_WORDS:
                self.ask(415, method, path, at, {}, {"Content-Type": "text/plain"})
                # The answer comes before the body.
                self.ask(413, method, path, at, headers={"Content-Length": str(TOO_LONG)})
                self.ask(413, method, path, at, (b" " * TOO_LONG,), {"Transfer-Encoding": "chunked"})

    def other_methods(self):
        for path in {path for path, _ in self.description.operations}:
            known = self.description.methods(path)
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - known:
                answer = self.scheduler.ask(method, path.replace("{gpu}", "0").replace("{id}", "none"))
                self.must_be_error(answer, 405, method, path)
                if set(answer.headers.get("allow", "").split(", ")) != known:
                    raise Problem(f"{path}: Allow is {answer.headers.get('allow')}, described are {known}")
        for path in ("/", "/v1", "/v2/leases", "/v1/leases/", "/v1/leases/a/b", "/v1/gpus//leases", "/v1/gpus/0"):
            self.must_be_error(self.scheduler.ask("GET", path), 404, "GET", path)

    def must_be_error(self, answer, code, method, path):
        if answer.status != code:
            raise Problem(f"{method} {path}: {answer.status} instead of {code}")
        self.description.check_error(answer, f"{method} {path}")

    def all(self):
        self.grant()
        self.stream()
        self.refuse()
        self.take_away()
        self.mistakes()
        self.doors()
        self.other_methods()
