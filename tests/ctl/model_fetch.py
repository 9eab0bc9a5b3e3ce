"""tfctl model fetch against a server that misbehaves (model_server.py).

usage: model_fetch.py TFCTL
"""

import hashlib
import json
import os
import pathlib
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import model_server as ms

TFCTL = ""
REPO = "owner/model"
COMMIT_A, COMMIT_B = "a1" * 20, "b2" * 20
WAIT_S = 120  # for anything on a busy machine


def content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


FILES = {
    "config.json": b'{"hidden": 1}',
    "empty.txt": b"",
    "model-00001-of-00002.safetensors": content(1, 300_000),
    "model-00002-of-00002.safetensors": content(2, 180_000),
    "folder/name with space.bin": content(3, 9_000),
}
LARGE = "model-00001-of-00002.safetensors"


def differences(folder: pathlib.Path, files: dict) -> list:
    """What is not as it should be: contents, missing files, and anything left over."""
    out = []
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    for name, data in files.items():
        if name not in there:
            out.append(f"{name} is missing")
        elif (folder / name).read_bytes() != data:
            out.append(f"{name} differs")
    out += [f"{name} is left over" for name in sorted(there - set(files) - {"tensorfold-files.json"})]
    return out


class FetchTest(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory(prefix="tf-fetch-")
        self.folder = pathlib.Path(self.temp.name) / "model"
        self.hub = ms.Hub()
        self.hub.repos[REPO] = ms.Repo({COMMIT_A: dict(FILES)}, COMMIT_A)
        self.stop = threading.Event()

    def tearDown(self):
        self.stop.set()
        self.hub.close()
        self.temp.cleanup()

    def command(self, *more, url=None) -> list:
        return [TFCTL, "model", "fetch", "--repo", REPO, "--dir", str(self.folder), "--base-url",
                url or self.hub.url, *more]

    def fetch(self, *more, code=0, env=None, url=None) -> subprocess.CompletedProcess:
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        run = subprocess.run(self.command(*more, url=url), capture_output=True, text=True, timeout=WAIT_S,
                             env=clean | (env or {}))
        self.assertEqual(run.returncode, code, run.stderr + run.stdout)
        return run

    def assert_whole(self, files=None):
        self.assertEqual(differences(self.folder, FILES if files is None else files), [])

    # What it should do.

    def test_everything_comes_and_is_recorded(self):
        self.hub.page_rows = 2
        run = self.fetch()
        self.assert_whole()
        self.assertIn("every hash right", run.stdout)
        record = json.loads((self.folder / "tensorfold-files.json").read_text())
        self.assertEqual(record["sources"], [{"repository": REPO, "revision": COMMIT_A}])
        self.assertEqual({f["path"]: f["sha256"] for f in record["files"]},
                         {n: hashlib.sha256(d).hexdigest() for n, d in FILES.items()})
        # The checker sees what is wrong.
        (self.folder / "config.json").write_bytes(b'{"hidden": 2}')
        (self.folder / "extra").write_bytes(b"")
        self.assertEqual(differences(self.folder, FILES), ["config.json differs", "extra is left over"])

    def test_a_second_run_asks_for_no_file_and_reads_none(self):
        self.fetch()
        before = len(self.hub.files_asked())
        report = json.loads(self.fetch("--json").stdout)
        self.assertEqual(len(self.hub.files_asked()), before)
        self.assertEqual((report["fetched_files"], report["files"]), (0, len(FILES)))
        # Touched but equal: read, and left alone. Changed: fetched.
        os.utime(self.folder / LARGE)
        (self.folder / "config.json").write_bytes(b'{"hidden": 2}')
        run = self.fetch()
        self.assertIn("2 files are there; their hashes are checked", run.stderr)
        asked = self.hub.files_asked()[before:]
        self.assertEqual([r["path"].rsplit("/", 1)[1] for r in asked], ["config.json"])
        self.assert_whole()

    def test_a_short_revision_is_resolved(self):
        self.hub.repos[REPO].commits[COMMIT_B] = {"config.json": b"{}"}
        self.fetch("--revision", COMMIT_A[:8])
        self.assert_whole()
        record = json.loads((self.folder / "tensorfold-files.json").read_text())
        self.assertEqual(record["sources"][0]["revision"], COMMIT_A)
        self.assertIn("has no revision 0123456", self.fetch("--revision", "0123456", code=1).stderr)

    def test_progress_is_plain_lines_elsewhere_and_drawn_on_a_terminal(self):
        run = self.fetch("--limit-rate", "400k")
        self.assertNotIn("\r", run.stderr)
        last = [line for line in run.stderr.splitlines() if line.startswith("fetching: ")][-1]
        self.assertRegex(last, r"^fetching: 489\.0 kB of 489\.0 kB \(100%\), 5 of 5 files, [\d.]+ [kM]?B/s$")
        (self.folder / LARGE).unlink()
        self.hub.faults[LARGE] = [ms.slow(20, 0.05, self.stop)]
        leader, follower = pty.openpty()
        process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=follower)
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 65536):
                shown += piece
        except OSError:
            pass
        os.close(leader)
        self.assertEqual(process.wait(WAIT_S), 0)
        self.assertRegex(shown.decode(), r"\rfetching: [\d.]+ kB of 489\.0 kB \(\d+%\), 4 of 5 files, [^\r]*left")

    # What goes wrong on the way.

    def test_dropped_connections_are_gone_on_with(self):
        self.hub.faults[LARGE] = [ms.drop_after(n) for n in (50_000, 1, 100_000)]
        run = self.fetch("--parallel", "1")
        self.assert_whole()
        asked = [r["range"] for r in self.hub.files_asked() if r["path"].endswith(LARGE)]
        self.assertEqual(len(asked), 4)
        starts = [int(r.split("=")[1].rstrip("-")) for r in asked[1:]]
        self.assertEqual(starts, sorted(starts))
        self.assertGreater(starts[0], 0)
        self.assertIn("again in", run.stderr)

    def test_a_killed_fetch_goes_on_where_it_was(self):
        self.hub.faults[LARGE] = [ms.slow(30, 0.1, self.stop)]
        process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = None
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            parts = list(self.folder.glob(LARGE + ".part-*"))
            if parts and parts[0].stat().st_size > 20_000:
                part = parts[0]
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.stop.set()
        self.assertIsNotNone(part)
        size = part.stat().st_size
        (self.folder / "tensorfold-files.json.tmp-1").write_bytes(b"{")  # killed while it wrote the record
        self.fetch()
        self.assert_whole()
        again = [r["range"] for r in self.hub.files_asked() if r["path"].endswith(LARGE)][-1]
        self.assertEqual(again, f"bytes={size}-")

    def test_a_file_that_changed_between_runs_begins_anew(self):
        self.hub.faults[LARGE] = [ms.drop_after(70_000)] + [ms.status(404)]
        self.assertIn(LARGE, self.fetch(code=1).stderr)
        old = list(self.folder.glob(LARGE + ".part-*"))
        self.assertEqual(len(old), 1)
        changed = FILES | {LARGE: content(9, 310_000)}
        self.hub.repos[REPO].commits[COMMIT_B] = changed
        self.hub.repos[REPO].main = COMMIT_B
        before = len(self.hub.files_asked())
        self.fetch()
        self.assert_whole(changed)
        asked = self.hub.files_asked()[before:]
        self.assertEqual([(r["path"].rsplit("/", 1)[1], r["range"]) for r in asked], [(LARGE, None)])

    def test_other_ranges_than_asked_for_are_not_written(self):
        self.hub.faults[LARGE] = [ms.drop_after(60_000), ms.wrong_range, ms.wrong_range]
        run = self.fetch()
        self.assert_whole()
        self.assertIn("another range than was asked for", run.stderr)

    def test_a_server_without_ranges_sends_the_whole_file(self):
        self.hub.faults[LARGE] = [ms.drop_after(60_000), ms.no_ranges]
        self.fetch()
        self.assert_whole()

    def test_a_wrong_hash_is_fetched_once_more_and_then_named(self):
        self.hub.faults[LARGE] = [ms.wrong_bytes]
        self.assertIn("once more from the start", self.fetch().stderr)
        self.assert_whole()
        (self.folder / LARGE).unlink()
        self.hub.faults[LARGE] = [ms.wrong_bytes] * 5
        run = self.fetch(code=1)
        wanted = hashlib.sha256(FILES[LARGE]).hexdigest()
        self.assertRegex(run.stderr, f"{LARGE}: SHA-256 [0-9a-f]{{64}}, the repository says {wanted}")
        self.assertEqual(len(self.hub.faults[LARGE]), 3)
        self.assertFalse((self.folder / LARGE).exists())

    def test_a_wrong_small_file_is_seen_by_its_git_hash(self):
        self.hub.faults["config.json"] = [ms.wrong_bytes] * 2
        self.assertIn("config.json: git SHA-1", self.fetch(code=1).stderr)
        self.assertFalse((self.folder / "config.json").exists())
        self.assertTrue((self.folder / LARGE).exists())  # the others came all the same

    def test_busy_servers_are_waited_for(self):
        start = time.monotonic()
        self.hub.faults[LARGE] = [ms.status(429, {"Retry-After": "2"}), ms.status(503)]
        run = self.fetch()
        self.assertGreaterEqual(time.monotonic() - start, 2.4)  # 2 s as told, then 0.5 s or more
        self.assertIn("HTTP status 429; again in 2 s", run.stderr)
        self.assert_whole()

    def test_a_server_that_stays_busy_is_given_up(self):
        self.hub.faults[LARGE] = [ms.status(503, {"Retry-After": "0"}, b'{"error": "in repair"}')] * 20
        run = self.fetch(code=1)
        self.assertIn("HTTP status 503 (in repair); given up after 8 tries", run.stderr)
        self.assertEqual(len(self.hub.faults[LARGE]), 12)
        self.hub.faults[LARGE] = [ms.status(503, {"Retry-After": "86400"})]
        self.assertIn("asks to come back in 86400 s", self.fetch(code=1).stderr)

    def test_sizes_that_do_not_agree(self):
        self.hub.faults[LARGE] = [ms.shorter, ms.longer]
        run = self.fetch()
        self.assertIn("the server has 299990 bytes of it, the repository says 300000", run.stderr)
        self.assert_whole()

    def test_a_silent_connection_is_made_anew(self):
        self.hub.faults[LARGE] = [ms.silent(self.stop)]
        self.assertIn("nothing came for too long", self.fetch("--stall", "1").stderr)
        self.assert_whole()

    def test_a_connection_that_drips_is_made_anew(self):
        self.hub.faults[LARGE] = [ms.drip(self.stop)]
        self.assertIn("next to nothing came for too long", self.fetch("--stall", "2").stderr)
        self.assert_whole()
        asked = [r["range"] for r in self.hub.files_asked() if r["path"].endswith(LARGE)]
        self.assertRegex(asked[1], r"^bytes=[1-9]\d*-$")  # what dripped is kept

    def test_an_encoded_answer_is_not_taken_for_the_file(self):
        self.hub.faults[LARGE] = [ms.encoded]
        self.assertIn("encoded as gzip", self.fetch().stderr)
        self.assert_whole()
        self.assertTrue(all(r["encoding"] == "identity" for r in self.hub.requests))

    def test_a_part_that_is_whole_is_only_hashed(self):
        self.hub.faults[LARGE] = [ms.drop_after(70_000), ms.status(404)]
        self.fetch(code=1)
        part = list(self.folder.glob(LARGE + ".part-*"))[0]
        part.write_bytes(FILES[LARGE])
        before = len(self.hub.files_asked())
        self.fetch()
        self.assert_whole()
        self.assertEqual(self.hub.files_asked()[before:], [])
        # One that is too long is of another file.
        (self.folder / LARGE).unlink()
        part.write_bytes(FILES[LARGE] + b"more")
        self.fetch()
        self.assert_whole()

    def test_416_begins_the_file_anew(self):
        self.hub.faults[LARGE] = [ms.drop_after(70_000), ms.status(416)]
        self.fetch()
        self.assert_whole()
        asked = [r["range"] for r in self.hub.files_asked() if r["path"].endswith(LARGE)]
        self.assertEqual((asked[0], asked[-1]), (None, None))

    def test_a_disk_that_fills_on_the_way(self):
        # A limit on the size of files stands for it: the write fails, and so does every other file's.
        run = subprocess.run(["bash", "-c", 'trap "" XFSZ; ulimit -f 200; exec "$@"', "-", *self.command("--parallel", "1")],
                             capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertRegex(run.stderr, f"{LARGE}.*(File too large|No space left)")
        self.assertFalse((self.folder / LARGE).exists())
        self.fetch()  # with room again it goes on
        self.assert_whole()

    def test_no_access_ends_it_at_once(self):
        self.hub.faults[LARGE] = [ms.status(403)] * 9
        self.assertIn("--token-file", self.fetch("--parallel", "1", code=1).stderr)
        self.assertEqual(len(self.hub.faults[LARGE]), 8)
        run = subprocess.run([TFCTL, "model", "fetch", "--repo", "no/body", "--dir", str(self.folder),
                              "--base-url", self.hub.url], capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(run.returncode, 1)
        self.assertIn("not public", run.stderr)

    def test_nobody_listens(self):
        self.hub.close()
        # The first try and seven more would take minutes: ended from outside, it must not say success.
        process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(1)
        self.assertIsNone(process.poll())
        process.terminate()
        self.assertNotEqual(process.wait(WAIT_S), 0)
        self.assertEqual(process.stdout.read(), "")
        process.stdout.close()
        self.hub = ms.Hub()

    # Who may see what.

    def test_the_token_stays_with_its_host(self):
        other = ms.Hub()
        other.repos["/cdn/large"] = FILES[LARGE]
        token = pathlib.Path(self.temp.name) / "token"
        token.write_text("hf_secret\n")
        token.chmod(0o600)
        # Another port of the same machine, and the same machine by another name.
        self.hub.faults[LARGE] = [ms.redirect(f"http://localhost:{other.port}/cdn/large")]
        self.fetch("--token-file", str(token))
        self.assert_whole()
        self.assertTrue(all(r["auth"] == "Bearer hf_secret" for r in self.hub.requests))
        self.assertEqual([r["auth"] for r in other.requests], [None])
        (self.folder / LARGE).unlink()
        self.hub.faults[LARGE] = [ms.redirect(f"{other.url}/cdn/large")]
        self.fetch("--token-file", str(token))
        self.assertEqual([r["auth"] for r in other.requests], [None, None])
        other.close()
        token.chmod(0o640)
        self.assertIn("chmod 600", self.fetch("--token-file", str(token), code=1).stderr)
        token.chmod(0o600)
        run = self.fetch("--token-file", str(token), code=2, url="http://models.example")
        self.assertIn("plain HTTP", run.stderr)

    def test_a_listing_on_another_server_is_not_followed(self):
        self.hub.page_rows = 2
        self.hub.scheme = "ftp"  # what the Link header says
        self.assertIn("another server", self.fetch(code=1, url=f"http://127.0.0.1:{self.hub.port}").stderr)
        self.hub.scheme = "http"

    def test_redirections_end(self):
        self.hub.faults[LARGE] = [ms.redirect(f"{self.hub.url}/{REPO}/resolve/{COMMIT_A}/{LARGE}")] * 30
        self.fetch(code=1)
        self.assertGreater(len(self.hub.faults[LARGE]), 15)

    def test_paths_that_leave_the_folder_are_refused(self):
        for path in ("../evil", "/etc/evil", "a/../../evil", "a//b", "a\nb", ".", "x" * 300, "a\\b"):
            self.hub.rows_changed = lambda rows, p=path: rows + [
                {"type": "file", "path": p, "size": 1, "oid": "0" * 40}]
            run = self.fetch(code=1)
            self.assertIn("the listing names the file", run.stderr, path)
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        for change in ({"size": -1}, {"size": "x"}, {"oid": "zz"}, {"oid": None}):
            self.hub.rows_changed = lambda rows, c=change: [r | c for r in rows if "lfs" not in r]
            self.assertIn("the listing gives no", self.fetch(code=1).stderr)
        self.hub.rows_changed = lambda rows: rows + rows[-1:]
        self.assertIn("twice", self.fetch(code=1).stderr)
        self.assertEqual(self.hub.files_asked(), [])

    def test_the_disk_is_looked_at_first(self):
        self.hub.rows_changed = lambda rows: rows + [
            {"type": "file", "path": "huge", "size": 10**15, "oid": "0" * 40}]
        self.assertIn("the disk has room for", self.fetch(code=1).stderr)
        self.assertEqual(self.hub.files_asked(), [])

    def test_a_certificate_must_be_right(self):
        key, cert = (str(pathlib.Path(self.temp.name) / n) for n in ("key.pem", "cert.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                        "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=127.0.0.1",
                        "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        secure = ms.Hub(tls=(cert, key))
        secure.repos = self.hub.repos
        self.assertRegex(self.fetch(code=1, url=secure.url).stderr, "(?i)certificate")
        self.fetch("--ca-file", cert, url=secure.url)
        self.assert_whole()
        (self.folder / LARGE).unlink()
        self.hub.repos["/cdn/large"] = FILES[LARGE]
        secure.faults[LARGE] = [ms.redirect(f"{self.hub.url}/cdn/large")]  # down to plain HTTP
        self.fetch("--ca-file", cert, code=1, url=secure.url)
        secure.close()

    def test_a_proxy_of_the_environment_is_used(self):
        proxy = ms.Proxy()
        self.fetch(env={"http_proxy": proxy.url})
        self.assert_whole()
        self.assertTrue(proxy.asked and all(p.startswith(self.hub.url) for p in proxy.asked))
        count = len(proxy.asked)
        (self.folder / LARGE).unlink()
        self.fetch(env={"http_proxy": proxy.url, "no_proxy": "127.0.0.1"})
        self.assertEqual(len(proxy.asked), count)
        proxy.close()

    # How fast, and one at a time.

    def test_the_rate_limit_is_of_all_files_together(self):
        start = time.monotonic()
        self.fetch("--limit-rate", "200k", "--parallel", "4")
        self.assertGreaterEqual(time.monotonic() - start, 0.85 * sum(map(len, FILES.values())) / 200_000)
        self.assert_whole()
        for bad in ("0", "-1", "fast", "1e30", ""):
            self.assertIn("--limit-rate", self.fetch("--limit-rate", bad, code=2).stderr)

    def test_one_fetch_works_on_a_folder_at_a_time(self):
        self.hub.faults[LARGE] = [ms.slow(100, 0.2, self.stop)]
        first = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_S
        while not list(self.folder.glob(LARGE + ".part-*")) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertIn("another 'tfctl model fetch' works on it", self.fetch(code=1).stderr)
        self.stop.set()
        self.assertEqual(first.wait(WAIT_S), 0)
        self.assert_whole()

    # The published model: two repositories make one folder.

    def test_the_published_model(self):
        def safetensors(tensors: dict) -> bytes:
            header, data = {}, b""
            for name, (dtype, shape, value) in tensors.items():
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(value)]}
                data += value
            text = json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + data

        bias = {i: struct.pack("<4f", *(i + k / 8 for k in range(4))) for i in (0, 1)}
        shards = {f"model-{i:05}-of-00004.safetensors": safetensors(
            {f"layers.{i}.ffn.gate.bias_vl": ("F32", [4], bias[i]), f"layers.{i}.other": ("U8", [9000], b"o" * 9000)})
            for i in (0, 1)}
        table = safetensors({"layers.1.engram.embed.weight": ("U8", [20000], content(7, 20_000))})
        index = {"weight_map": {"layers.0.ffn.gate.bias_vl": "model-00000-of-00004.safetensors",
                                "layers.1.ffn.gate.bias_vl": "model-00001-of-00004.safetensors",
                                "layers.1.engram.embed.weight": "model-00003-of-00004.safetensors"}}
        original = shards | {"model-00003-of-00004.safetensors": table, "config.json": b'{"original": 1}',
                             "tokenizer.json": content(8, 5_000), "model.safetensors.index.json": json.dumps(index).encode()}
        pack = {"model-00001-of-00001.safetensors": content(5, 40_000), "config.json": b'{"pack": 1}'}
        weights_at, original_at = "afc7aa0a" + "1" * 32, "1bae0e10" + "2" * 32
        self.hub.repos = {
            "LibertAIDAI/DeepSeek-V4.1-Flash-1017-EXL3-2.9bpw": ms.Repo({weights_at: pack}, weights_at),
            "deepseek-ai/DeepSeek-V4.1-Flash-1017": ms.Repo({original_at: original}, original_at)}
        command = [TFCTL, "model", "fetch", "--dir", str(self.folder), "--base-url", self.hub.url]
        run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(f'model.engram_path = "{self.folder}/engram"', run.stdout)
        made = safetensors({f"layers.{i}.ffn.gate.bias_vl": ("F32", [4], bias[i]) for i in (0, 1)})
        there = (self.folder / "engram/model-bias-vl.safetensors").read_bytes()
        length = struct.unpack("<Q", there[:8])[0]
        self.assertEqual(there[8 + length:], bias[0] + bias[1])
        header = json.loads(there[8:8 + length])
        header.pop("__metadata__", None)
        self.assertEqual(header, json.loads(made[8:8 + struct.unpack("<Q", made[:8])[0]]))
        self.assertEqual(differences(self.folder, {
            "model-00001-of-00001.safetensors": pack["model-00001-of-00001.safetensors"],
            "config.json": original["config.json"], "tokenizer.json": original["tokenizer.json"],
            "engram/model-00003-of-00004.safetensors": table, "engram/model-bias-vl.safetensors": there}), [])
        record = json.loads((self.folder / "tensorfold-files.json").read_text())
        self.assertEqual({s["revision"] for s in record["sources"]}, {weights_at, original_at})
        before = len(self.hub.files_asked())
        again = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual([r["path"].rsplit("/", 1)[1] for r in self.hub.files_asked()[before:]],
                         ["model.safetensors.index.json"])
        check = subprocess.run([TFCTL, "model", "verify", str(self.folder)], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout)


if __name__ == "__main__":
    TFCTL = sys.argv.pop(1)
    unittest.main()
