"""A server of model repositories that misbehaves as it is told to, for tests of `tfctl model fetch`.

Routes are those of a hub: /api/models/REPO/revision|commits|tree and /REPO/resolve/COMMIT/PATH. A
fault belongs to a path and is a function that answers one request; faults are used up in order.
"""

import hashlib
import http.client
import http.server
import json
import re
import ssl
import threading
import urllib.parse

LARGE = 4096  # files from this size on have an LFS hash


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """Commits of one repository: {commit: {path: bytes}}; branches name commits."""

    def __init__(self, commits: dict, main: str):
        self.commits, self.main = commits, main

    def rows(self, commit: str) -> list:
        out = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "engram"}]
        for path, data in self.commits[commit].items():
            row = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if len(data) >= LARGE:
                row["oid"] = git_sha1(b"version https://git-lfs.github.com/spec/v1\n")
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
            out.append(row)
        return out


class Hub:
    def __init__(self, tls=None):
        self.repos: dict[str, Repo] = {}
        self.faults: dict[str, list] = {}   # path of a file -> functions(handler, data)
        self.rows_changed = None            # changes the listing before it is sent
        self.page_rows = 1000
        self.requests: list[dict] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # clients that go away are part of the tests

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def files_asked(self) -> list:
        return [r for r in self.requests if "/resolve/" in r["path"]]

    def answer(self, handler):
        path = urllib.parse.unquote(urllib.parse.urlsplit(handler.path).path)
        self.requests.append({"path": path, "range": handler.headers.get("Range"), "raw": handler.path,
                              "auth": handler.headers.get("Authorization"), "encoding": handler.headers.get("Accept-Encoding"), "host": handler.headers["Host"]})
        if found := re.match(r"^/api/models/([\w.-]+/[\w.-]+)/(revision|commits|tree)/([^/]+)$", path):
            return self.api(handler, *found.groups())
        if found := re.match(r"^/([\w.-]+/[\w.-]+)/resolve/([0-9a-f]{40})/(.+)$", path):
            repo, commit, name = found.groups()
            data = self.repos[repo].commits.get(commit, {}).get(name)
            if data is None:
                return send(handler, 404, b'{"error": "Entry not found"}')
            if self.faults.get(name):
                return self.faults[name].pop(0)(handler, data)
            return send_file(handler, data)
        if path.startswith("/cdn/") and path in self.repos:
            return send_file(handler, self.repos[path])
        return send(handler, 404, b'{"error": "no such path"}')

    def api(self, handler, name, what, which):
        repo = self.repos.get(name)
        if repo is None:
            return send(handler, 401, b'{"error": "Repository not found"}')
        commit = repo.main if which == "main" else which
        if what == "commits":
            return send(handler, 200, json.dumps([{"id": c} for c in repo.commits]).encode())
        if commit not in repo.commits:
            return send(handler, 404, b'{"error": "Invalid rev id"}')
        if what == "revision":
            return send(handler, 200, json.dumps({"sha": commit}).encode())
        rows = repo.rows(commit)
        if self.rows_changed:
            rows = self.rows_changed(rows)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(handler.path).query)
        at = int(query.get("at", ["0"])[0])
        link = {}
        if at + self.page_rows < len(rows):
            link = {"Link": f'<{self.url}{urllib.parse.urlsplit(handler.path).path}?recursive=1&'
                            f'at={at + self.page_rows}>; rel="next"'}
        return send(handler, 200, json.dumps(rows[at:at + self.page_rows]).encode(), link)


def send(handler, status: int, body: bytes, headers=None):
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def wanted_range(handler, size: int):
    found = re.match(r"^bytes=(\d+)-(\d*)$", handler.headers.get("Range") or "")
    if not found:
        return None
    return int(found[1]), min(int(found[2]) if found[2] else size - 1, size - 1)


def head(handler, data: bytes, shift: int = 0) -> bytes:
    """Sends status and headers as the range asks; gives the body."""
    wanted = wanted_range(handler, len(data))
    if wanted is None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        return data
    first, last = wanted
    if first >= len(data):
        send(handler, 416, b"")
        return b""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {first - shift}-{last - shift}/{len(data)}")
    handler.send_header("Content-Length", str(last - first + 1))
    handler.end_headers()
    return data[first - shift:last + 1 - shift]


def send_file(handler, data: bytes):
    handler.wfile.write(head(handler, data))


# Faults: each answers one request for a file.

def drop_after(count: int):
    """The connection ends in the middle."""
    def fault(handler, data):
        body = head(handler, data)
        handler.wfile.write(body[:count])
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(2)
    return fault


def status(code: int, headers=None, body=b""):
    return lambda handler, data: send(handler, code, body, headers)


def wrong_range(handler, data):
    """Other bytes than were asked for, honestly labeled."""
    handler.wfile.write(head(handler, data, shift=100 if wanted_range(handler, len(data)) else 0))


def no_ranges(handler, data):
    send(handler, 200, data)


def wrong_bytes(handler, data):
    handler.wfile.write(head(handler, bytes(b ^ 1 for b in data)))


def shorter(handler, data):
    """A whole answer about a file that is not as long as the listing says."""
    send(handler, 200, data[:-10])


def longer(handler, data):
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(data + b"more")
    handler.close_connection = True


def redirect(to: str):
    return lambda handler, data: send(handler, 302, b"", {"Location": to})


def slow(pieces: int, gap_s: float, stop: threading.Event):
    def fault(handler, data):
        body = head(handler, data)
        step = max(1, len(body) // pieces)
        for at in range(0, len(body), step):
            handler.wfile.write(body[at:at + step])
            handler.wfile.flush()
            stop.wait(gap_s)  # set: the rest at once
    return fault


def silent(stop: threading.Event):
    """Headers, and then nothing."""
    def fault(handler, data):
        head(handler, data)
        handler.wfile.flush()
        stop.wait(60)
        handler.close_connection = True
    return fault


def drip(stop: threading.Event):
    """A few bytes a second, for as long as the reader stays."""
    def fault(handler, data):
        body = head(handler, data)
        for at in range(0, len(body), 10):
            handler.wfile.write(body[at:at + 10])
            handler.wfile.flush()
            if stop.wait(0.25):
                break
        handler.close_connection = True
    return fault


def encoded(handler, data):
    """Compressed, though nobody asked for it; its length is that of the file on purpose."""
    send(handler, 200, data, {"Content-Encoding": "gzip"})


class Proxy:
    """A plain HTTP proxy that only writes down what it is asked for, and asks for it."""

    def __init__(self):
        self.asked: list[str] = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                proxy.asked.append(self.path)
                at = urllib.parse.urlsplit(self.path)
                connection = http.client.HTTPConnection(at.hostname, at.port, timeout=20)
                headers = {k: v for k, v in self.headers.items() if not k.lower().startswith("proxy")}
                connection.request("GET", at.path + (f"?{at.query}" if at.query else ""), headers=headers)
                answer = connection.getresponse()
                body = answer.read()
                send(self, answer.status, body,
                     {k: v for k, v in answer.getheaders() if k in ("Content-Range", "Link")})

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
