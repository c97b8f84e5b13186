"""The agent: one process a host, started by what is there (srun), which does what the runner asks and leaves
nothing behind.

Its source comes over standard input, as that of launch/warm.py does; it imports nothing of ours. Python >=
3.9. One JSON document a line in each direction; a request with an ``id`` gets one answer with that id. The
agent ends with all it started when standard input ends, and when no request came for ``LEASE_S``: a cut
network closes no pipe.
"""

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time

LEASE_S = 15.0  # the runner renews it every second; everything is gone within 20 s of a cut
POLL_S = 0.5
LARGE_BYTES = 1 << 20  # far more than one segment, and than a socket's first window
LINE_BYTES, MOST_CONNECTIONS = 64, 64
PR_SET_PDEATHSIG = 1
UNROUTED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EINVAL, errno.EPERM)


def die_with_parent():
    """Linux kills this process when the thread that started it ends; elsewhere the closed pipe does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclasses.dataclass
class Path:
    """One TCP connection to try: 1 byte, then LARGE_BYTES, in both directions."""

    name: str
    port: int
    token: str
    wait_s: float
    progress: dict = dataclasses.field(default_factory=lambda: {"address": "", "mss": 0})

    def tried(self):
        """A dict: ``kind`` of the result, and ``progress``. Since the listener is known to run, *refused*
        means a firewall."""
        began = time.monotonic()
        try:
            kind, detail = self.walked()
        except socket.gaierror as error:
            kind, detail = "unresolved", error.strerror
        except OSError as error:
            kind, detail = self.stopped(error), str(error)
        return {
            "kind": kind,
            "detail": detail,
            "seconds": round(time.monotonic() - began, 3),
            **self.progress,
        }

    def walked(self):
        """(kind, detail) of a connection that was not broken: passes, other-host or closed. OSError
        otherwise."""
        # the listener is IPv4, and so are the addresses that node.py shows
        rows = socket.getaddrinfo(self.name, self.port, socket.AF_INET, socket.SOCK_STREAM)
        family, _, _, _, address = rows[0]
        self.progress["address"] = address[0]
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(self.wait_s)
            connection.connect(address)
            self.progress["mss"] = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            connection.sendall(self.token.encode() + b"\n")
            stream = connection.makefile("rb")
            for size, direction in ((1, "there"), (LARGE_BYTES, "there")):
                self.progress["stage"] = "%d B %s" % (size, direction)
                connection.sendall(b"%d\n" % size + b"x" * size)
                if stream.readline().decode().strip() != self.token:
                    return (
                        "other-host",
                        "the process that listens on this port is not the runbook's agent of that host",
                    )
                self.progress["stage"] = "%d B back" % size
                if len(stream.read(size)) < size:
                    return "closed", "the connection ended early"
                self.progress["reached"] = size
        return "passes", ""

    def stopped(self, error):
        """The kind of path that this OSError shows: large-lost, no-answer, refused, no-route or closed."""
        if isinstance(error, socket.timeout):
            return "large-lost" if self.progress.get("reached") else "no-answer"
        if error.errno == errno.ECONNREFUSED:
            return "refused"
        return "no-route" if error.errno in UNROUTED else "closed"


def serve(listener, token, accepted):
    """Answer each connection in a thread: the token, then as many bytes as were sent."""
    while True:
        while len(accepted) >= MOST_CONNECTIONS:
            time.sleep(0.01)  # the others wait in the backlog
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed: this port's test is over
            return
        accepted.append(connection)
        threading.Thread(target=echo, args=(connection, token, accepted), daemon=True).start()


def echo(connection, token, accepted):
    """Answer only a peer that sends the token first; line lengths and sizes are limited, since anyone can
    connect."""
    with connection:
        connection.settimeout(3.0)  # a stranger delays no other peer
        stream = connection.makefile("rb")
        try:
            known = stream.readline(LINE_BYTES).decode().strip() == token
            connection.settimeout(30.0)
            for line in iter(lambda: stream.readline(LINE_BYTES) if known else b"", b""):
                size = int(line)
                if not line.endswith(b"\n") or not 0 <= size <= LARGE_BYTES:
                    break
                stream.read(size)
                connection.sendall(token.encode() + b"\n" + b"x" * size)
        except (OSError, ValueError):  # the other side reports how far it came; strangers may send anything
            pass
    accepted.remove(connection)


class Agent:
    """The agent of one host: answers requests from standard input until that ends, or the lease expires."""

    def __init__(self):
        self.out = os.fdopen(os.dup(1), "wb", 0)
        os.dup2(2, 1)
        # written by a thread: a cut network fills the pipe, and the lease still has to end
        self.answers = queue.Queue()
        self.listeners, self.accepted, self.warm, self.children = {}, [], None, []
        threading.Thread(target=self.write, daemon=True).start()

    def send(self, **document):
        """Queue one answer, as a JSON line."""
        self.answers.put((json.dumps(document) + "\n").encode())

    def write(self):
        """Write queued answers to the former standard output; never returns (runs in a thread)."""
        while True:
            self.out.write(self.answers.get())

    def serve(self):
        """Handle requests until standard input ends or LEASE_S seconds pass without one."""
        pending, heard = b"", time.monotonic()
        while time.monotonic() - heard < LEASE_S:
            if not select.select([0], [], [], POLL_S)[0]:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            heard = time.monotonic()
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self.on_request(json.loads(line))

    def on_request(self, request):
        """Handle one request; those that the agent does not know go to the warm process."""
        do = request.get("do")
        if do == "lease":
            self.send(beat=time.time(), id=request["id"])
        elif do == "run":
            self.run(request)
        elif do == "listen":
            self.send(id=request["id"], ports=self.listen(request["ports"], request["token"]))
        elif do == "hush":
            for listener in self.listeners.values():
                listener.shutdown(socket.SHUT_RDWR)  # close alone leaves it listening: a thread is in accept
                listener.close()
            self.listeners.clear()
            for connection in list(self.accepted):
                try:
                    connection.shutdown(socket.SHUT_RDWR)  # its thread ends and closes it
                except OSError:  # it ended meanwhile
                    continue
            self.send(id=request["id"])
        elif do == "connect":
            threading.Thread(target=self.connect, args=(request,), daemon=True).start()
        else:
            self.pass_on(request)

    def run(self, request):
        """Start a file of ours under this interpreter with a deadline; a thread answers with its output."""
        child = subprocess.Popen(
            [sys.executable, "-", *request["args"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,  # in the main thread, which lives as long as the agent
            start_new_session=True,
        )
        self.children.append(child)
        threading.Thread(target=self.wait, args=(request, child), daemon=True).start()

    def wait(self, request, child):
        """Wait for the child and answer with its output, errors, exit code, and whether it was killed at the
        deadline."""
        printed, late = (b"", b""), False
        try:
            printed = child.communicate(request["source"].encode(), request["deadline_s"])
        except subprocess.TimeoutExpired:
            late = True
            child.kill()
        output, errors = (part.decode("utf-8", "replace") for part in printed)
        self.send(id=request["id"], output=output, errors=errors[-4000:], code=child.poll(), late=late)

    def listen(self, ports, token):
        """Requested port -> the port that listens, or the error text (a port in use)."""
        opened = {}
        for port in ports:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError as error:
                opened[str(port)] = error.strerror
                continue
            listener.listen(1024)
            self.listeners[listener.fileno()] = listener
            opened[str(port)] = listener.getsockname()[1]
            threading.Thread(target=serve, args=(listener, token, self.accepted), daemon=True).start()
        return opened

    def connect(self, request):
        """Try one path and answer with the result."""
        path = Path(request["name"], request["port"], request["token"], request["wait_s"])
        self.send(id=request["id"], **path.tried())

    def pass_on(self, request):
        """Pass a request to the warm process, which the first such request starts; its reports are passed
        up."""
        if "start" in request:
            self.warm = subprocess.Popen(
                [sys.executable, "-u", "-c", request["start"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=die_with_parent,
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
            self.children.append(self.warm)
            source = request["source"].encode()
            self.warm.stdin.write(b"%d\n" % len(source) + source)
            self.warm.stdin.flush()
            threading.Thread(target=self.pass_up, args=(self.warm,), daemon=True).start()
        elif self.warm is not None:
            try:
                self.warm.stdin.write((json.dumps(request) + "\n").encode())
                self.warm.stdin.flush()
            except BrokenPipeError:  # its end is reported by the thread that reads it
                return

    def pass_up(self, warm):
        """Pass every report of the warm process up, and report its end (runs in a thread)."""
        for line in warm.stdout:
            self.answers.put(b'{"warm": ' + line.strip() + b"}\n")
        self.send(warm={"gone": True})

    def leave(self):
        """End the ranks (the warm process kills them when its input ends), then the other children."""
        if self.warm is not None:
            self.warm.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.warm.wait(1.5)
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        os._exit(0)


def main():
    """Report ``ready``, then serve; at the end every child is ended."""
    die_with_parent()
    agent = Agent()
    agent.send(ready=True, host=os.uname().nodename, pid=os.getpid(), python=sys.version.split()[0])
    try:
        agent.serve()
    finally:
        agent.leave()


if __name__ == "__main__":
    main()
