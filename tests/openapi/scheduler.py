"""A real scheduler with the software GPU's NVML, and requests to it."""

import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile

PATIENCE = 30  # seconds for what must happen


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read()

    @property
    def body(self):
        return json.loads(self.text)


class Event:
    """One event of a reply that goes on, as an answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        lines = iter(lambda: response.readline().rstrip(b"\n"), b"")
        self.fields = dict(line.split(b": ", 1) for line in lines)
        self.text = self.fields.get(b"data", b"")

    @property
    def body(self):
        return json.loads(self.text)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scheduler:
    """A scheduler for the whole machine, because only such a one listens on TCP."""

    def __init__(self, build):
        self.folder = tempfile.mkdtemp(prefix="nvshare-openapi-")
        self.port = free_port()
        self.log = os.path.join(self.folder, "log")
        ready, say_ready = os.pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NVSHARE_")}
        environment.update(
            LD_LIBRARY_PATH=os.path.join(build, "lib/softgpu"),
            NVSHARE_SOFTGPU_CARD=os.path.basename(self.folder),
            NVSHARE_RUN_CGROUPS="false",
        )
        config = os.path.join(self.folder, "scheduler.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'http_listen = "127.0.0.1:{self.port}"\n')
        command = [os.path.join(build, "bin/nvshare-scheduler"), "--config", config]
        command += ["--run-dir", self.folder, "--ready-fd", str(say_ready)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, pass_fds=[say_ready], env=environment, stderr=log)
        os.close(say_ready)
        readable, _, _ = select.select([ready], [], [], PATIENCE)
        started = readable and os.read(ready, 1) == b"\n"
        os.close(ready)
        if not started:
            text = self.end()
            raise RuntimeError(f"the scheduler did not start:\n{text}")

    def connection(self, tcp=False):
        if tcp:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        return UnixConnection(os.path.join(self.folder, "api.sock"))

    def ask(self, method, path, body=None, headers=None, tcp=False):
        """`body`: bytes as they are, a tuple of them in chunks, anything else as JSON."""
        connection = self.connection(tcp)
        try:
            begin(connection, method, path, body, headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def end(self):
        """What it has logged. An exit code that is not 0 is an error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        with open(self.log, encoding="utf-8", errors="replace") as log:
            text = log.read()
        shutil.rmtree(self.folder)
        return text if code == 0 else f"{text}the scheduler ended with {code}\n"


def begin(connection, method, path, body=None, headers=None):
    """Sends a request and does not wait for its answer."""
    if body is not None and not isinstance(body, (bytes, tuple)):
        body = json.dumps(body).encode()
    all_headers = {"Content-Type": "application/json"} if body is not None else {}
    all_headers.update(headers or {})
    try:
        connection.request(method, path, body, all_headers, encode_chunked=isinstance(body, tuple))
    except (BrokenPipeError, ConnectionResetError):
        pass  # a refused request is answered before its body has come
