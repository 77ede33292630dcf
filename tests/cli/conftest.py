"""A node for the CLI: an HTTP server with canned answers."""

import http.server
import json
import threading
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


class Node:
    """Answers requests with `answers` in turn; the last one repeats."""

    def __init__(self):
        self.answers = []
        self.by_path = {}
        """Answers to these paths, whenever they are asked for."""
        self.paths = []
        self.keys = []
        self.bodies = []
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                node.bodies.append(json.loads(body) if body else None)
                self.do_GET()

            def do_DELETE(self):
                self.do_POST()

            def do_GET(self):
                node.paths.append(self.path)
                node.keys.append(self.headers["Authorization"])
                answer = node.by_path.get(self.path)
                if answer is None:
                    answer = node.answers.pop(0) if len(node.answers) > 1 else node.answers[0]
                code, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def node():
    node = Node()
    thread = threading.Thread(target=node.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield node
    node.server.shutdown()
    node.server.server_close()
    thread.join()


@pytest.fixture
def status():
    """The golden status, a new copy for each test: mini-3 loads, the rest is well."""
    return json.loads((GOLDEN / "status.json").read_text())


@pytest.fixture
def ready(status):
    status["state"] = status["models"][0]["state"] = status["nodes"][2]["state"] = "ready"
    status["warnings"] = []
    return status
